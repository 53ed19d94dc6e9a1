//! Values of JSON as MySQL has them, and back.

use mysql_async::consts::ColumnType;
use mysql_async::{Column, Value as Sql};
use serde_json::Value;

/// The character set that stands for no characters at all.
const BYTES: u16 = 63;

/// A list or a map is given as JSON; everything else as what it is.
pub fn sql(value: &Value) -> Sql {
    match value {
        Value::Null => Sql::NULL,
        Value::Bool(truth) => Sql::Int(i64::from(*truth)),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(whole), _, _) => Sql::Int(whole),
            (None, Some(whole), _) => Sql::UInt(whole),
            (None, None, Some(real)) => Sql::Double(real),
            (None, None, None) => Sql::NULL,
        },
        Value::String(text) => Sql::Bytes(text.clone().into_bytes()),
        other => Sql::Bytes(other.to_string().into_bytes()),
    }
}

/// `None` for bytes that are no text.
pub fn read(column: &Column, value: Sql) -> Option<Value> {
    let kind = column.column_type();
    Some(match value {
        Sql::NULL => Value::Null,
        Sql::Int(number) => number.into(),
        Sql::UInt(number) => number.into(),
        Sql::Float(number) => f64::from(number).into(),
        Sql::Double(number) => number.into(),
        Sql::Date(year, month, day, ..) if kind == ColumnType::MYSQL_TYPE_DATE => {
            Value::String(format!("{year:04}-{month:02}-{day:02}"))
        }
        Sql::Date(year, month, day, hour, minute, second, micros) => {
            let date = format!("{year:04}-{month:02}-{day:02}");
            Value::String(format!("{date} {hour:02}:{minute:02}:{second:02}{}", fraction(micros)))
        }
        Sql::Time(is_negative, days, hours, minutes, seconds, micros) => {
            let (sign, hours) = (if is_negative { "-" } else { "" }, u64::from(days) * 24 + u64::from(hours));
            Value::String(format!("{sign}{hours:02}:{minutes:02}:{seconds:02}{}", fraction(micros)))
        }
        Sql::Bytes(bytes) => match kind {
            ColumnType::MYSQL_TYPE_JSON => serde_json::from_slice(&bytes).ok()?,
            ColumnType::MYSQL_TYPE_BIT => {
                bytes.iter().try_fold(0_u64, |sum, byte| Some(sum.checked_mul(256)? + u64::from(*byte)))?.into()
            }
            // Exact numbers, as they are written.
            ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL => Value::String(text(bytes)?),
            _ if column.character_set() == BYTES => return None,
            _ => Value::String(text(bytes)?),
        },
    })
}

fn text(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

fn fraction(micros: u32) -> String {
    if micros == 0 { String::new() } else { format!(".{micros:06}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c8_values_go_to_mysql_as_what_they_are() {
        assert_eq!(sql(&json!(null)), Sql::NULL);
        assert_eq!(sql(&json!(true)), Sql::Int(1));
        assert_eq!(sql(&json!(-7)), Sql::Int(-7));
        assert_eq!(sql(&json!(u64::MAX)), Sql::UInt(u64::MAX));
        assert_eq!(sql(&json!(1.5)), Sql::Double(1.5));
        assert_eq!(sql(&json!("'; --")), Sql::Bytes(b"'; --".to_vec()));
        assert_eq!(sql(&json!({"a": [1]})), Sql::Bytes(br#"{"a":[1]}"#.to_vec()));
    }

    #[test]
    fn c8_values_of_mysql_come_as_they_are_written() {
        let check = |kind, value, written: Value| assert_eq!(read(&Column::new(kind), value), Some(written));
        check(ColumnType::MYSQL_TYPE_DATE, Sql::Date(2026, 2, 3, 0, 0, 0, 0), json!("2026-02-03"));
        check(ColumnType::MYSQL_TYPE_DATETIME, Sql::Date(2026, 2, 3, 4, 5, 6, 70), json!("2026-02-03 04:05:06.000070"));
        check(ColumnType::MYSQL_TYPE_TIME, Sql::Time(true, 1, 2, 3, 4, 0), json!("-26:03:04"));
        check(ColumnType::MYSQL_TYPE_BIT, Sql::Bytes(vec![1, 2]), json!(258));
        check(ColumnType::MYSQL_TYPE_JSON, Sql::Bytes(b"{\"a\":1}".to_vec()), json!({"a": 1}));
        check(ColumnType::MYSQL_TYPE_NEWDECIMAL, Sql::Bytes(b"-12.50".to_vec()), json!("-12.50"));
        let bytes = Column::new(ColumnType::MYSQL_TYPE_BLOB).with_character_set(BYTES);
        assert_eq!(read(&bytes, Sql::Bytes(vec![1])), None);
    }
}
