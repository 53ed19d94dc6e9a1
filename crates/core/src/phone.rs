//! A phone number as the whole world writes it (E.164), from how somebody wrote it.

use phonenumber::metadata::{DATABASE, Descriptors};
use phonenumber::{Mode, PhoneNumber, country};
use std::fmt;
use std::str::FromStr;

/// No number is longer, with all the signs that people put between digits.
const CHARS_MAX: usize = 64;

/// Where a number without `+` is: one of the countries whose numbers are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Country(country::Id);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a country that has phone numbers")]
pub struct BadCountry;

impl FromStr for Country {
    type Err = BadCountry;
    fn from_str(text: &str) -> Result<Self, BadCountry> {
        let id: country::Id = text.parse().map_err(|_| BadCountry)?;
        DATABASE.by_id(id.as_ref()).is_some().then_some(Country(id)).ok_or(BadCountry)
    }
}

/// How sure it must be that somebody can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Strictness {
    /// What is no number is said to be none, and the job goes on.
    None,
    /// Its length is one that numbers of its country have.
    #[default]
    Possible,
    /// It is in a range that its country gives out.
    Valid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phone {
    /// `+` and digits.
    pub e164: String,
    /// Two letters; `None` where a country code has several and the number is in none of their ranges.
    pub country: Option<String>,
    pub possible: bool,
    pub valid: bool,
}

/// Why it is not a number that will do; never the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAPhone {
    Unreadable,
    Impossible,
    Invalid,
}

impl fmt::Display for NotAPhone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotAPhone::Unreadable => "it is not a phone number, or has no `+` and no country is given",
            NotAPhone::Impossible => "no phone number of its country has so many digits",
            NotAPhone::Invalid => "its country has no such phone numbers",
        })
    }
}

/// `None` where nothing is asked of it and it is no number.
pub fn read(text: &str, country: Option<Country>, strict: Strictness) -> Result<Option<Phone>, NotAPhone> {
    match (parse(text, country), strict) {
        (Some(phone), Strictness::None) => Ok(Some(phone)),
        (None, Strictness::None) => Ok(None),
        (None, _) => Err(NotAPhone::Unreadable),
        (Some(phone), _) if !phone.possible => Err(NotAPhone::Impossible),
        (Some(phone), Strictness::Valid) if !phone.valid => Err(NotAPhone::Invalid),
        (Some(phone), _) => Ok(Some(phone)),
    }
}

fn parse(text: &str, country: Option<Country>) -> Option<Phone> {
    // Numbers as people write them, and nothing of the languages that addresses of numbers have.
    let is_usual = |c: char| c.is_ascii_digit() || " +-()./\u{a0}\u{2011}\u{2013}".contains(c);
    if text.chars().count() > CHARS_MAX || !text.chars().all(is_usual) {
        return None;
    }
    let plain: String = text.chars().map(|c| if c.is_ascii() { c } else { ' ' }).collect();
    let number = phonenumber::parse(country.map(|country| country.0), plain).ok()?;
    let e164 = number.format().mode(Mode::E164).to_string();
    let valid = number.is_valid();
    let country = number.country().id().map(|id| id.as_ref().to_string());
    Some(Phone { possible: valid || is_possible(&number, &e164), e164, country, valid })
}

fn is_possible(number: &PhoneNumber, e164: &str) -> bool {
    let code = number.code().value();
    let digits = e164.len().saturating_sub(1 + code.to_string().len());
    let Some(countries) = DATABASE.by_code(&code) else { return false };
    let has_length = |kinds: &Descriptors| {
        let kinds = [
            kinds.fixed_line(),
            kinds.mobile(),
            kinds.toll_free(),
            kinds.premium_rate(),
            kinds.shared_cost(),
            kinds.personal_number(),
            kinds.voip(),
            kinds.pager(),
            kinds.uan(),
            kinds.voicemail(),
        ];
        kinds.into_iter().flatten().flat_map(|kind| kind.possible_length()).any(|length| usize::from(*length) == digits)
    };
    countries.iter().any(|country| has_length(country.descriptors()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, country: &str, strict: Strictness, e164: Result<Option<&str>, NotAPhone>) {
        let country = (!country.is_empty()).then(|| country.parse().expect("a country"));
        let read = read(text, country, strict).map(|phone| phone.map(|phone| phone.e164));
        assert_eq!(read, e164.map(|e164| e164.map(str::to_string)), "{text}");
    }

    #[test]
    fn c8_a_number_is_written_as_the_whole_world_writes_it() {
        for (text, country, e164) in [
            ("030 123456", "DE", "+4930123456"),
            ("+49 (0)30/123456", "", "+4930123456"),
            ("(650) 253-0000", "US", "+16502530000"),
            ("+1 650-253-0000", "DE", "+16502530000"),
            ("02 3661 8300", "IT", "+390236618300"),
        ] {
            check(text, country, Strictness::Valid, Ok(Some(e164)));
        }
        let phone = read("030 123456", Some("DE".parse().expect("DE")), Strictness::Valid).expect("a number");
        assert_eq!(phone.and_then(|phone| phone.country).as_deref(), Some("DE"));
    }

    #[test]
    fn c8_how_sure_it_must_be_is_said() {
        check("call me", "DE", Strictness::None, Ok(None));
        check("call me", "DE", Strictness::Possible, Err(NotAPhone::Unreadable));
        check("030 123456", "", Strictness::Possible, Err(NotAPhone::Unreadable));
        check("+1 650 253", "", Strictness::None, Ok(Some("+1650253")));
        check("+1 650 253", "", Strictness::Possible, Err(NotAPhone::Impossible));
        // Ten digits, as numbers there have; after an area none goes on with a 0.
        check("+1 200 000 0000", "", Strictness::Possible, Ok(Some("+12000000000")));
        check("+1 200 000 0000", "", Strictness::Valid, Err(NotAPhone::Invalid));
        check("tel:030;phone-context=+49", "", Strictness::Possible, Err(NotAPhone::Unreadable));
        check(&"1".repeat(65), "DE", Strictness::Possible, Err(NotAPhone::Unreadable));
    }

    #[test]
    fn c8_a_country_is_one_whose_numbers_are_known() {
        for bad in ["", "Germany", "de", "XX", "AQ", "001"] {
            assert!(bad.parse::<Country>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "[-+0-9 ()./]{0,30}", strange in "\\PC{0,20}") {
            for country in [None, Some("DE".parse().expect("DE")), Some("US".parse().expect("US"))] {
                let _ = read(&text, country, Strictness::None);
                let _ = read(&strange, country, Strictness::Valid);
            }
        }
    }
}
