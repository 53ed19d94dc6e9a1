//! The text of a statement as MySQL reads it: `?` where clinch has `$1`, and nothing that ends the transaction.

/// Statements that leave the transaction alone. At many others MySQL commits by itself.
const RUN: [&str; 8] = ["SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES", "DO"];

#[derive(Debug, PartialEq)]
pub struct Statement {
    pub text: String,
    /// For each `?` in turn: which of the parameters stands there, counted from 0.
    pub places: Vec<usize>,
}

impl Statement {
    /// `$1` is a place wherever MySQL would read a value: not in texts, names and comments. Comments are left out.
    pub fn read(written: &str, given: usize) -> Result<Statement, String> {
        let bytes = written.as_bytes();
        let (mut text, mut places) = (String::with_capacity(written.len()), Vec::new());
        let (mut at, mut is_over) = (0, false);
        while at < bytes.len() {
            let rest = &bytes[at..];
            let end = at + piece(rest);
            let piece = &written[at..end];
            at = end;
            if is_comment(rest) || rest[0].is_ascii_whitespace() {
                text.push_str(if is_comment(rest) { " " } else { piece });
                continue;
            }
            if is_over {
                return Err("it is more than one statement".into());
            }
            match rest[0] {
                b';' => is_over = true,
                b'?' => return Err("`?` is not the place of a parameter; write `$1`, `$2` and so on".into()),
                b'/' if piece.starts_with("/*!") || piece.starts_with("/*M!") => {
                    return Err("text that only some servers read (`/*! … */`) is not run; write it without".into());
                }
                b'$' if piece[1..].parse::<usize>().is_ok() => {
                    let place = piece[1..].parse::<usize>().ok().and_then(|place| place.checked_sub(1));
                    places.push(place.ok_or("places of parameters are counted from `$1`")?);
                    text.push('?');
                }
                _ => text.push_str(piece),
            }
        }
        let begins = text.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        let first = begins.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_ascii_uppercase();
        if !RUN.contains(&first.as_str()) {
            return Err(format!(
                "`{first}` is not run: MySQL and MariaDB may commit by themselves at such a statement, and then it is not \
                 run once; write SELECT, INSERT, UPDATE, DELETE, REPLACE, WITH, VALUES or DO"
            ));
        }
        let needed = places.iter().max().map_or(0, |last| last + 1);
        if needed != given {
            let said = format!("its statement has {needed} parameters and {given} are given");
            return Err(format!("{said}; give as many `params` as it has `$n`"));
        }
        Ok(Statement { text, places })
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || !byte.is_ascii()
}

/// Hints of the optimizer and text for some servers only look like comments.
fn is_comment(rest: &[u8]) -> bool {
    match rest {
        [b'#', ..] | [b'-', b'-'] => true,
        [b'-', b'-', next, ..] => next.is_ascii_whitespace() || next.is_ascii_control(),
        [b'/', b'*', b'!' | b'+', ..] | [b'/', b'*', b'M', b'!', ..] => false,
        [b'/', b'*', ..] => true,
        _ => false,
    }
}

/// How long what the text begins with is: a text or name in quotes, a comment, a word, or one character.
fn piece(rest: &[u8]) -> usize {
    let until = |from: usize, ends: &[u8]| {
        let found = rest[from..].windows(ends.len()).position(|window| window == ends);
        found.map_or(rest.len(), |at| from + at + ends.len())
    };
    match rest[0] {
        quote @ (b'\'' | b'"' | b'`') => quoted(rest, quote),
        b'/' if rest.starts_with(b"/*") => until(2, b"*/"),
        b'#' | b'-' if is_comment(rest) => until(1, b"\n"),
        first if is_of_name(first) => rest.iter().position(|byte| !is_of_name(*byte)).unwrap_or(rest.len()),
        _ => 1,
    }
}

/// A quote inside is written twice, or, but in a name, after a backslash.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' if quote != b'`' => at += 2,
            byte if byte == quote && rest.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(written: &str, given: usize) -> (String, Vec<usize>) {
        let Statement { text, places } = Statement::read(written, given).expect(written);
        (text, places)
    }

    #[test]
    fn c8_places_of_parameters_are_found_where_mysql_reads_values() {
        let check = |written: &str, given: usize, text: &str, places: &[usize]| {
            assert_eq!(read(written, given), (text.to_string(), places.to_vec()));
        };
        check("INSERT INTO t (b, a) VALUES ($2,$1)", 2, "INSERT INTO t (b, a) VALUES (?,?)", &[1, 0]);
        check("SELECT $1 + $1, $10", 10, "SELECT ? + ?, ?", &[0, 0, 9]);
        check(
            r#"SELECT '$1 it''s \'$1', "$1""\"$1", `$1``$1`, $1"#,
            1,
            r#"SELECT '$1 it''s \'$1', "$1""\"$1", `$1``$1`, ?"#,
            &[0],
        );
        check("SELECT a$1, $1a, é$1, $1", 1, "SELECT a$1, $1a, é$1, ?", &[0]);
        check("SELECT 1--$1\n-1 -- $2\n, 2 # '\n/* ' $3 */;", 1, "SELECT 1--?\n-1  , 2   ", &[0]);
        check("SELECT /*+ MAX_EXECUTION_TIME(1) */ '$.a';", 0, "SELECT /*+ MAX_EXECUTION_TIME(1) */ '$.a'", &[]);
        check(r"SELECT 'open \", 0, r"SELECT 'open \", &[]);
        check(" ( SELECT 'é$1' )", 0, " ( SELECT 'é$1' )", &[]);
    }

    #[test]
    fn c8_what_would_commit_by_itself_is_refused_before_it_is_run() {
        let check = |written: &str, given: usize, said: &str| {
            let why = Statement::read(written, given).expect_err(written);
            assert!(why.contains(said), "{why}");
        };
        for written in [
            "create table t (a int)",
            "/* x */ ALTER TABLE t ADD b int",
            "TRUNCATE t",
            "CALL p()",
            "SET autocommit = 1",
        ] {
            check(written, 0, "commit by themselves");
        }
        for written in
            ["# x\nDROP TABLE t", "LOCK TABLES t WRITE", "LOAD DATA LOCAL INFILE 'x' INTO TABLE t", "", "-- x"]
        {
            check(written, 0, "is not run");
        }
        check("/*!50000 COMMIT */", 0, "some servers");
        check("SELECT 1 /*M! ; COMMIT */", 0, "some servers");
        check("DELETE FROM t; DROP TABLE t", 0, "more than one statement");
        check("DELETE FROM t WHERE a = ?", 1, "write `$1`");
        check("DELETE FROM t WHERE a = $0", 0, "from `$1`");
        check("DELETE FROM t WHERE a = $1", 2, "1 parameters and 2 are given; give as many `params`");
        check("DELETE FROM t WHERE a = $99999999999999999999", 1, "0 parameters");
    }
}
