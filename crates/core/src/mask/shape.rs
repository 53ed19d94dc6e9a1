//! Values that give themselves away by their shape, found in free text: addresses of mail, phones, cards, accounts,
//! secrets, and the value after the name of a sensitive field. A safety net, not the control: what must not be stored is
//! dropped at the door. Every finder passes once over the text.

use super::HIDDEN;
use super::name::{Class, Names};
use std::net::Ipv6Addr;

/// A part of a text, and what is shown in its place.
#[derive(Debug)]
pub(super) struct Span {
    pub start: usize,
    pub end: usize,
    pub shown: String,
}

/// No shape is longer than this before it is recognised.
pub(super) const SHAPE_BYTES_MAX: usize = 64;

/// All finds, in order, none touching another.
pub(super) fn find(text: &str, names: &Names, addresses: bool) -> Vec<Span> {
    let mut spans = Vec::new();
    mails(text, &mut spans);
    secrets(text, &mut spans);
    accounts(text, &mut spans);
    numbers(text, addresses, &mut spans);
    if addresses {
        ipv6(text, &mut spans);
    }
    pairs(text, names, &mut spans);
    spans.sort_by(|a, b| a.start.cmp(&b.start).then(b.end.cmp(&a.end)));
    let mut apart: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match apart.last_mut() {
            Some(last) if span.start < last.end && span.end > last.end => {
                last.end = span.end;
                last.shown = HIDDEN.to_string();
            }
            Some(last) if span.start < last.end => {}
            _ => apart.push(span),
        }
    }
    apart
}

/// What is shown for a text that is one such value as a whole.
pub(super) fn whole(text: &str) -> Option<String> {
    let text = text.trim();
    let spans = find(text, &Names::none(), true);
    match spans.as_slice() {
        [one] if one.start == 0 && one.end == text.len() => Some(one.shown.clone()),
        _ => None,
    }
}

/// A hash of ours hides what it stands for, and is there to be compared.
pub(super) fn is_ours(word: &[u8]) -> bool {
    [&b"h_"[..], b"clinch-", b"ent_"].iter().any(|prefix| {
        word.strip_prefix(*prefix)
            .is_some_and(|rest| rest.len() == 32 && rest.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
    })
}

/// 13 to 19 digits that begin like a payment card and pass Luhn's check.
pub(super) fn is_card(digits: &[u8]) -> bool {
    (13..=19).contains(&digits.len()) && matches!(digits[0], b'2'..=b'6') && {
        let sum: u32 = digits
            .iter()
            .rev()
            .enumerate()
            .map(|(at, digit)| {
                let digit = u32::from(digit - b'0');
                if at % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 }
            })
            .sum();
        sum.is_multiple_of(10)
    }
}

pub(super) fn shown_card(digits: &[u8]) -> String {
    format!("{HIDDEN}{}", tail(digits, 4))
}

fn tail(digits: &[u8], count: usize) -> String {
    digits[digits.len().saturating_sub(count)..].iter().map(|b| char::from(*b)).collect()
}

/// Bytes above ASCII count as letters, so every border found here is a border of characters.
fn is_letter(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte >= 0x80
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn run(bytes: &[u8], from: usize, belongs: impl Fn(u8) -> bool) -> usize {
    bytes[from..].iter().position(|b| !belongs(*b)).map_or(bytes.len(), |length| from + length)
}

/// `ada@example.com`, `ada%40example.com`, and who is named in `https://user:password@host`.
fn mails(text: &str, spans: &mut Vec<Span>) {
    let bytes = text.as_bytes();
    let mut floor = 0;
    let mut at = 0;
    while at < bytes.len() {
        let width = match bytes[at..] {
            [b'@', ..] => 1,
            [b'%', b'4', b'0', ..] => 3,
            _ => {
                at += 1;
                continue;
            }
        };
        let back = |belongs: &dyn Fn(u8) -> bool| {
            bytes[floor..at].iter().rposition(|b| !belongs(*b)).map_or(floor, |place| floor + place + 1)
        };
        let user = back(&|b| !b.is_ascii_whitespace() && !b"/\"'<>`".contains(&b));
        if user < at && user >= 2 && &bytes[user - 2..user] == b"//" {
            spans.push(Span { start: user, end: at, shown: HIDDEN.to_string() });
            at += width;
            floor = at;
            continue;
        }
        let start = back(&|b| is_letter(b) || b.is_ascii_digit() || b"._%+-'~!#$^*".contains(&b));
        let mut end = run(bytes, at + width, |b| is_letter(b) || b.is_ascii_digit() || b == b'.' || b == b'-');
        while end > at + width && matches!(bytes[end - 1], b'.' | b'-') {
            end -= 1;
        }
        if start < at && end > at + width {
            let shown = shown_mail(&text[start..at], &text[at + width..end]);
            spans.push(Span { start, end, shown });
        }
        at = end.max(at + width);
        floor = at;
    }
}

fn shown_mail(local: &str, domain: &str) -> String {
    let end = match domain.rsplit_once('.') {
        Some((_, end)) if end.len() <= 10 && end.bytes().all(|b| b.is_ascii_alphabetic()) => format!(".{end}"),
        _ => String::new(),
    };
    let first_label = domain.split('.').next().unwrap_or_default();
    format!("{}@{}{end}", first_letter(local, 2), first_letter(first_label, 2))
}

/// The first character, so that one can be told from another; not when that would be nearly all of it.
pub(super) fn first_letter(text: &str, chars_min: usize) -> String {
    match text.chars().next() {
        Some('•') | None => HIDDEN.to_string(),
        Some(first) if text.chars().nth(chars_min - 1).is_some() => format!("{first}{HIDDEN}"),
        _ => HIDDEN.to_string(),
    }
}

/// Beginnings by which makers of secrets mark them.
const SECRET_PREFIXES: [&str; 33] = [
    "AIza",
    "AKIA",
    "ASIA",
    "SG.",
    "clk_",
    "cls_",
    "dop_v1_",
    "eyJ",
    "gho_",
    "ghp_",
    "ghr_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "hf_",
    "key-",
    "npm_",
    "pypi-",
    "rk_",
    "shpat_",
    "shpca_",
    "shpss_",
    "sk-",
    "sk_",
    "sq0",
    "whsec_",
    "whsk_",
    "xapp-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "ya29.",
];
const SECRET_REST_MIN: usize = 8;
const OPAQUE_MIN: usize = 32;

fn secrets(text: &str, spans: &mut Vec<Span>) {
    let bytes = text.as_bytes();
    let is_more = |b: u8| is_word(b) || b".+/=~".contains(&b);
    let mut at = 0;
    let mut base64_end = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let word_end = run(bytes, at, is_word);
        if let Some(prefix) = SECRET_PREFIXES.iter().find(|prefix| bytes[at..].starts_with(prefix.as_bytes())) {
            let end = run(bytes, at, is_more);
            let rest = &bytes[at + prefix.len()..end];
            let marked = prefix.ends_with(['_', '-']) && rest.iter().any(u8::is_ascii_uppercase);
            if rest.len() >= SECRET_REST_MIN && (marked || rest.iter().any(u8::is_ascii_digit)) {
                spans.push(Span { start: at, end, shown: format!("{prefix}{HIDDEN}") });
                at = end;
                continue;
            }
        }
        if follows_scheme(&bytes[..at]) {
            let end = run(bytes, at, is_more);
            let credential = &bytes[at..end];
            let odd = credential.iter().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase() || *b == b'=');
            if odd && credential.len() >= 6 {
                spans.push(Span { start: at, end, shown: HIDDEN.to_string() });
                at = end;
                continue;
            }
        }
        if is_opaque(&bytes[at..word_end]) {
            let end = run(bytes, at, |b| is_word(b) || b"+/=".contains(&b));
            spans.push(Span { start: at, end, shown: first_letters(&text[at..end]) });
            at = end;
            continue;
        }
        if at >= base64_end {
            let body_end = run(bytes, at, |b| is_word(b) || b == b'+' || b == b'/');
            base64_end = run(bytes, body_end, |b| b == b'=');
            if is_base64(&bytes[at..base64_end], base64_end - body_end) {
                spans.push(Span { start: at, end: base64_end, shown: first_letters(&text[at..base64_end]) });
                at = base64_end;
                continue;
            }
        }
        at = word_end;
    }
}

fn first_letters(opaque: &str) -> String {
    format!("{}{HIDDEN}", opaque.chars().take(4).collect::<String>())
}

/// True after `Bearer ` and `Basic `.
fn follows_scheme(before: &[u8]) -> bool {
    let word = before.trim_ascii_end();
    word.len() < before.len()
        && [&b"bearer"[..], b"basic"].iter().any(|scheme| {
            word.len() >= scheme.len() && {
                let (rest, end) = word.split_at(word.len() - scheme.len());
                end.eq_ignore_ascii_case(scheme) && !rest.last().is_some_and(|b| is_word(*b))
            }
        })
}

fn is_mixed(bytes: &[u8]) -> bool {
    bytes.iter().any(u8::is_ascii_uppercase)
        && bytes.iter().any(u8::is_ascii_lowercase)
        && bytes.iter().filter(|b| b.is_ascii_digit()).count() >= 2
}

fn is_opaque(word: &[u8]) -> bool {
    let hex = |part: &[u8]| part.len() >= OPAQUE_MIN && part.iter().all(u8::is_ascii_hexdigit);
    word.len() >= OPAQUE_MIN && !is_ours(word) && (is_mixed(word) || word.split(|b| *b == b'-' || *b == b'_').any(hex))
}

fn is_base64(word: &[u8], padding: usize) -> bool {
    let parted = word.split(|b| *b == b'/').any(|part| part.len() >= 16 && is_mixed(part));
    (word.len() >= 24 && (1..=2).contains(&padding) && is_mixed(word))
        || (word.len() >= 40 && (word.contains(&b'+') || parted) && is_mixed(word))
}

/// Bank accounts: an IBAN, together or in groups, whose check digits are right.
fn accounts(text: &str, spans: &mut Vec<Span>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let starts = matches!(bytes[at..], [a, b, c, d, ..]
            if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() && c.is_ascii_digit() && d.is_ascii_digit())
            && !(at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] >= 0x80));
        match if starts { account_end(&bytes[at..]) } else { None } {
            Some(length) => {
                let end = at + length;
                let digits: Vec<u8> = bytes[at..end].iter().copied().filter(u8::is_ascii_alphanumeric).collect();
                spans.push(Span {
                    start: at,
                    end,
                    shown: format!("{}{HIDDEN}{}", &text[at..at + 2], tail(&digits, 4)),
                });
                at = end;
            }
            None => at += 1,
        }
    }
}

fn account_end(bytes: &[u8]) -> Option<usize> {
    let mut compact = Vec::with_capacity(34);
    let mut found = None;
    for (at, byte) in bytes.iter().enumerate() {
        if byte.is_ascii_alphanumeric() {
            compact.push(byte.to_ascii_uppercase());
            if compact.len() > 34 {
                break;
            }
            let ends = !bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric);
            if ends && compact.len() >= 15 && remainder_97(&compact) == 1 {
                found = Some(at + 1);
            }
        } else if !matches!(byte, b' ' | b'-') || !bytes[at - 1].is_ascii_alphanumeric() {
            break;
        }
    }
    found
}

fn remainder_97(account: &[u8]) -> u32 {
    account[4..].iter().chain(&account[..4]).fold(0, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        letter => (rest * 100 + u32::from(letter - b'A') + 10) % 97,
    })
}

/// One unbroken row of digits.
#[derive(Clone, Copy)]
struct Group {
    start: usize,
    end: usize,
}

impl Group {
    fn digits(self) -> usize {
        self.end - self.start
    }
}

/// Cards, phones, social security numbers and IPv4 addresses: rows of digits with small separators between them.
fn numbers(text: &str, addresses: bool, spans: &mut Vec<Span>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let encoded_plus = at >= 3 && bytes[at - 3..at].eq_ignore_ascii_case(b"%2b");
        if at > 0 && is_letter(bytes[at - 1]) && !encoded_plus {
            at = run(bytes, at, |b| b.is_ascii_digit());
            continue;
        }
        let groups = groups(bytes, at);
        let Some(last) = groups.last() else {
            at = run(bytes, at, |b| b.is_ascii_digit());
            continue;
        };
        at = last.end;
        // Cards first, lest digits next to one are taken for a phone together with half of it.
        let mut from = 0;
        let mut place = 0;
        while place < groups.len() {
            match card(bytes, &groups[place..]) {
                Some((taken, span)) => {
                    spans.push(span);
                    others(bytes, &groups[from..place], addresses, spans);
                    place += taken;
                    from = place;
                }
                None => place += 1,
            }
        }
        others(bytes, &groups[from..], addresses, spans);
    }
}

fn card(bytes: &[u8], groups: &[Group]) -> Option<(usize, Span)> {
    let mut digits = Vec::with_capacity(19);
    let mut found = None;
    for (at, group) in groups.iter().enumerate() {
        let apart = at > 0 && !matches!(&bytes[groups[at - 1].end..group.start], b" " | b"-");
        if apart || digits.len() + group.digits() > 19 {
            break;
        }
        digits.extend_from_slice(&bytes[group.start..group.end]);
        if is_card(&digits) {
            found = Some((at + 1, Span { start: groups[0].start, end: group.end, shown: shown_card(&digits) }));
        }
    }
    found
}

fn others(bytes: &[u8], mut groups: &[Group], addresses: bool, spans: &mut Vec<Span>) {
    while !groups.is_empty() {
        let taken = match number(bytes, groups, addresses) {
            Some((taken, span)) => {
                spans.extend(span);
                taken
            }
            None => 1,
        };
        groups = &groups[taken..];
    }
}

fn groups(bytes: &[u8], from: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut start = from;
    loop {
        let end = run(bytes, start, |b| b.is_ascii_digit());
        if bytes.get(end).is_some_and(|b| is_letter(*b)) {
            return groups;
        }
        groups.push(Group { start, end });
        let next = run(bytes, end, |b| b" -./()".contains(&b));
        if next == end || next - end > 2 || !bytes.get(next).is_some_and(u8::is_ascii_digit) {
            return groups;
        }
        start = next;
    }
}

/// What the first of these groups begins: how many groups, and what to hide (nothing, for a date).
fn number(bytes: &[u8], groups: &[Group], addresses: bool) -> Option<(usize, Option<Span>)> {
    let first = groups[0];
    let between = |at: usize| &bytes[groups[at].end..groups[at + 1].start];
    let lengths: Vec<usize> = groups.iter().take(5).map(|group| group.digits()).collect();
    let joined = |count: usize, by: &[u8]| groups.len() >= count && (0..count - 1).all(|at| between(at) == by);
    let year = matches!(bytes[first.start..], [b'1', b'9', ..] | [b'2', b'0', ..]);
    if year && lengths.starts_with(&[4, 2, 2]) && joined(3, b"-") {
        return Some((3, None));
    }
    let small = |group: &Group| {
        let text = std::str::from_utf8(&bytes[group.start..group.end]).unwrap_or_default();
        text.len() <= 3 && text.parse::<u8>().is_ok()
    };
    if joined(4, b".") && groups.iter().take(4).all(small) && !joined(5, b".") {
        let shown = format!("{}.{HIDDEN}", tail(&bytes[first.start..first.end], 3));
        let span = Span { start: first.start, end: groups[3].end, shown };
        return Some((4, addresses.then_some(span)));
    }
    let digits = |count: usize| -> Vec<u8> {
        groups[..count].iter().flat_map(|group| &bytes[group.start..group.end]).copied().collect()
    };
    let total = |count: usize| groups[..count].iter().map(|group| group.digits()).sum::<usize>();
    let up_to = |most: usize| (1..=groups.len()).take_while(move |count| total(*count) <= most);
    if lengths.starts_with(&[3, 2, 4]) && joined(3, b"-") && !joined(4, b"-") {
        return Some((3, Some(Span { start: first.start, end: groups[2].end, shown: HIDDEN.to_string() })));
    }
    let before = &bytes[..first.start];
    let open = before.strip_suffix(b"(").unwrap_or(before);
    let plus = [&b"+"[..], b"%2B", b"%2b"].iter().find_map(|plus| open.strip_suffix(*plus)).map(<[u8]>::len);
    if let Some(start) = plus {
        let count = up_to(15).last().filter(|count| total(*count) >= 7)?;
        let all = digits(count);
        let shown = format!("+{}{HIDDEN}{}", tail(&all[..2], 2), tail(&all, 2));
        return Some((count, Some(Span { start, end: groups[count - 1].end, shown })));
    }
    let joint = before.strip_suffix(b"-").or(before.strip_suffix(b".")).or(before.strip_suffix(b"_")).unwrap_or(before);
    if joint.last().is_some_and(u8::is_ascii_alphanumeric) {
        return None;
    }
    let national = |count: usize| {
        let dots = (0..count - 1).filter(|at| between(*at) == b".").count();
        let zero = bytes[first.start] == b'0';
        let last_long = count > 1 && groups[count - 1].digits() >= 4;
        (10..=15).contains(&total(count))
            && (dots == 0 || (dots == count - 1 && count >= 3))
            && (count == 1 || groups[..count].iter().all(|group| group.digits() <= 8))
            && (zero || open.len() < before.len() || last_long)
    };
    let count = up_to(15).filter(|count| national(*count)).last()?;
    let shown = format!("{HIDDEN}{}", tail(&digits(count), 2));
    Some((count, Some(Span { start: first.start, end: groups[count - 1].end, shown })))
}

fn ipv6(text: &str, spans: &mut Vec<Span>) {
    let bytes = text.as_bytes();
    let belongs = |b: u8| b.is_ascii_hexdigit() || b == b':' || b == b'.';
    let mut at = 0;
    while at < bytes.len() {
        if !belongs(bytes[at]) {
            at += 1;
            continue;
        }
        let end = run(bytes, at, belongs);
        let part = &text[at..end];
        if end - at <= SHAPE_BYTES_MAX && part.parse::<Ipv6Addr>().is_ok() {
            let first = part.split(':').next().unwrap_or_default();
            spans.push(Span { start: at, end, shown: format!("{first}:{HIDDEN}") });
        }
        at = end;
    }
}

/// `password=…`, `"token": "…"`, `authorization: …`: the value after the name of a sensitive field.
fn pairs(text: &str, names: &Names, spans: &mut Vec<Span>) {
    const NAME_BYTES_MAX: usize = 64;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let sign = bytes[at];
        if !matches!(sign, b':' | b'=') {
            at += 1;
            continue;
        }
        let low = at.saturating_sub(NAME_BYTES_MAX);
        let dressed = |b: &u8| matches!(b, b' ' | b'"' | b'\'' | b'`' | b'\\');
        let name_end = bytes[low..at].iter().rposition(|b| !dressed(b)).map_or(low, |place| low + place + 1);
        let is_name = |b: &u8| is_word(*b) || matches!(b, b'.' | b'[' | b']');
        let name_start = bytes[low..name_end].iter().rposition(|b| !is_name(b)).map_or(low, |place| low + place + 1);
        // A name that is cut at `low` may begin inside of a character; it is only compared.
        let name = String::from_utf8_lossy(&bytes[name_start..name_end]);
        let Some(class) = names.class(&name).filter(|_| !bytes[at..].starts_with(b"://")) else {
            at += 1;
            continue;
        };
        let mut start = run(bytes, at + 1, |b| matches!(b, b' ' | b'\t' | b'=' | b':' | b'>' | b'\\'));
        let quote = bytes.get(start).copied().filter(|b| matches!(b, b'"' | b'\'' | b'`'));
        let escaped = start > 0 && bytes[start - 1] == b'\\';
        let mut end = match quote {
            Some(quote) => {
                start += 1;
                closing(bytes, start, quote, escaped)
            }
            None if matches!(bytes.get(start), Some(b'{' | b'[')) => run(bytes, start, |b| b != b'\n'),
            None => run(bytes, start, |b| {
                let ends = b"&;,\n\r\"'<>)}]".contains(&b) || (sign == b'=' && b.is_ascii_whitespace());
                !ends
            }),
        };
        while end > start && bytes[end - 1].is_ascii_whitespace() {
            end -= 1;
        }
        if end <= start {
            at = start.max(at + 1);
            continue;
        }
        let value = &text[start..end];
        // `email: is not valid` is a sentence about a field; a real address in it has a shape of its own.
        if class == Class::Shaped && quote.is_none() && value.contains(' ') {
            at += 1;
            continue;
        }
        spans.push(Span { start, end, shown: hidden(value, class) });
        at = end;
    }
}

/// Where a quoted value ends. Inside of quotes that are themselves escaped, the next quote closes.
fn closing(bytes: &[u8], from: usize, quote: u8, escaped: bool) -> usize {
    let mut at = from;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' && !escaped { 2 } else { 1 };
    }
    let end = at.min(bytes.len());
    if escaped && end > from && bytes[end - 1] == b'\\' { end - 1 } else { end }
}

/// What is shown for the value of a sensitive field.
pub(super) fn hidden(value: &str, class: Class) -> String {
    if class != Class::Shaped || value.len() > SHAPE_BYTES_MAX * 4 {
        return HIDDEN.to_string();
    }
    let is_end = |rest: &str| rest.len() <= 4 && rest.bytes().all(|b| b.is_ascii_digit());
    if value.strip_prefix(HIDDEN).is_some_and(is_end) {
        return value.to_string();
    }
    whole(value).unwrap_or_else(|| {
        let digits: Vec<u8> = value.bytes().filter(u8::is_ascii_digit).collect();
        let numeric = value.bytes().all(|b| b.is_ascii_digit() || b" -./()+".contains(&b));
        if numeric && digits.len() >= 7 { format!("{HIDDEN}{}", tail(&digits, 2)) } else { HIDDEN.to_string() }
    })
}
