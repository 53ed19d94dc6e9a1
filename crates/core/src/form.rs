//! A form body (`application/x-www-form-urlencoded`), read field by field.

pub(crate) fn is_form(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

pub(crate) struct Field<'a> {
    /// As it was sent, name and value.
    pub raw: &'a [u8],
    pub raw_name: &'a [u8],
    pub name: String,
    pub value: Vec<u8>,
}

pub(crate) fn fields(body: &[u8]) -> impl Iterator<Item = Field<'_>> {
    body.split(|b| *b == b'&').filter(|raw| !raw.is_empty()).map(|raw| {
        let end = raw.iter().position(|b| *b == b'=').unwrap_or(raw.len());
        let raw_name = &raw[..end];
        let value = decoded(raw.get(end + 1..).unwrap_or_default());
        Field { raw, raw_name, name: String::from_utf8_lossy(&decoded(raw_name)).into_owned(), value }
    })
}

fn decoded(raw: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let hex = |place: usize| raw.get(place).and_then(|b| char::from(*b).to_digit(16));
        match (raw[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 2;
            }
            (b'+', _, _) => plain.push(b' '),
            (other, _, _) => plain.push(other),
        }
        at += 1;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_a_form_is_read_as_browsers_write_it() {
        let check = |body: &str, expected: &[(&str, &str)]| {
            let seen: Vec<_> =
                fields(body.as_bytes()).map(|f| (f.name, String::from_utf8_lossy(&f.value).into_owned())).collect();
            let expected: Vec<_> = expected.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
            assert_eq!(seen, expected, "{body}");
        };
        check("a=1&b=x+y&a=%C3%A9", &[("a", "1"), ("b", "x y"), ("a", "é")]);
        check("e%6Dail=ada%40example.com", &[("email", "ada@example.com")]);
        check("flag&&x=a=b&p=100%&q=%zz", &[("flag", ""), ("x", "a=b"), ("p", "100%"), ("q", "%zz")]);
        check("", &[]);
    }

    #[test]
    fn a5_a_form_is_known_by_its_content_type() {
        assert!(
            is_form("application/x-www-form-urlencoded") && is_form("Application/X-WWW-Form-Urlencoded; charset=x")
        );
        assert!(!is_form("application/json") && !is_form("multipart/form-data; boundary=x") && !is_form(""));
    }
}
