//! How pages ask: through the routes of the public API, in this process, as the person who looks. So a page cannot show or do
//! what the API would not.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, StatusCode};
use clinch_core::audit::Who;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use tower_service::Service;

#[derive(Clone)]
pub struct Api(pub Router);

/// What the API says instead of an answer.
#[derive(Clone, Debug, Deserialize)]
pub struct Refusal {
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub detail: String,
}

impl Refusal {
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub fn strange(detail: String) -> Refusal {
        let title = "The answer cannot be shown".into();
        Refusal { status: 500, code: "CL0530".into(), title, detail }
    }
}

/// The API, asked by somebody.
#[derive(Clone)]
pub struct Ask {
    api: Api,
    who: Who,
}

impl Ask {
    pub fn new(api: Api, who: Who) -> Ask {
        Ask { api, who }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: impl Display) -> Result<T, Refusal> {
        self.call(Method::GET, path, Body::empty()).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: impl Display, ask: &impl Serialize) -> Result<T, Refusal> {
        let body = serde_json::to_vec(ask).map_err(|error| Refusal::strange(error.to_string()))?;
        self.call(Method::POST, path, Body::from(body)).await
    }

    async fn call<T: DeserializeOwned>(&self, method: Method, path: impl Display, body: Body) -> Result<T, Refusal> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1/{path}"))
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| Refusal::strange(error.to_string()))?;
        request.extensions_mut().insert(self.who.clone());
        let response = self.api.0.clone().call(request).await.unwrap_or_else(|never| match never {});
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| Refusal::strange(error.to_string()))?;
        read(status, &body.to_bytes())
    }
}

fn read<T: DeserializeOwned>(status: StatusCode, body: &Bytes) -> Result<T, Refusal> {
    if status.is_success() {
        return serde_json::from_slice(body).map_err(|error| Refusal::strange(error.to_string()));
    }
    let told: Result<Refusal, _> = serde_json::from_slice(body);
    Err(told.unwrap_or_else(|error| Refusal::strange(error.to_string())))
}

/// A text as one part of a path.
pub fn part(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A question mark and what is asked; nothing for what is empty.
pub fn query(pairs: &[(&str, &str)]) -> String {
    let mut told = url::form_urlencoded::Serializer::new(String::new());
    told.extend_pairs(pairs.iter().filter(|(_, value)| !value.is_empty()));
    let told = told.finish();
    if told.is_empty() { told } else { format!("?{told}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_cannot_become_another_question() {
        assert_eq!(part("a/../b?c=d&e f"), "a%2F..%2Fb%3Fc%3Dd%26e%20f");
        assert_eq!(query(&[("flow", "a&b=c"), ("state", "")]), "?flow=a%26b%3Dc");
        assert_eq!(query(&[("flow", "")]), "");
    }
}
