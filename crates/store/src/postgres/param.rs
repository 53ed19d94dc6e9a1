//! Parameters of statements. Each knows the type that the server is to take it for, so that a statement needs no name and no
//! second round trip to be understood.

use std::borrow::Cow;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

pub(super) type Params<'a> = &'a [&'a (dyn Param + Sync)];

pub(super) trait Param: ToSql {
    fn kind(&self) -> Type;
}

macro_rules! params {
    ($($rust:ty => $one:ident, $many:ident;)*) => {
        $(
            impl Param for $rust {
                fn kind(&self) -> Type { Type::$one }
            }
            impl Param for Option<$rust> {
                fn kind(&self) -> Type { Type::$one }
            }
            impl Param for Vec<$rust> {
                fn kind(&self) -> Type { Type::$many }
            }
            impl Param for Vec<Option<$rust>> {
                fn kind(&self) -> Type { Type::$many }
            }
        )*
    };
}

params! {
    bool => BOOL, BOOL_ARRAY;
    i16 => INT2, INT2_ARRAY;
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    f64 => FLOAT8, FLOAT8_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    Cow<'_, str> => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
}

impl Param for &[i64] {
    fn kind(&self) -> Type {
        Type::INT8_ARRAY
    }
}

pub(super) fn values<'a>(params: Params<'a>) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|param| *param as &(dyn ToSql + Sync)).collect()
}

pub(super) fn types(params: Params<'_>) -> Vec<Type> {
    params.iter().map(|param| param.kind()).collect()
}

/// Asks with a statement that has no name.
pub(super) async fn ask(client: &Client, sql: &str, params: Params<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
    let typed: Vec<(&(dyn ToSql + Sync), Type)> = values(params).into_iter().zip(types(params)).collect();
    client.query_typed(sql, &typed).await
}
