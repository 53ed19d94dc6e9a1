//! A browser without a script: it keeps its cookie, follows no link by itself, and sends forms as pages have them.

use crate::world::{Answer, World};
use reqwest::header::{COOKIE, SET_COOKIE};
use std::net::SocketAddr;

pub struct Browser {
    client: reqwest::Client,
    at: SocketAddr,
    cookie: String,
}

impl Browser {
    /// Logged in as the admin.
    pub async fn of(world: &World) -> Browser {
        let token = std::fs::read_to_string(world.data_dir().join("admin.token")).unwrap();
        Browser::logged_in(world, "admin", token.trim()).await
    }

    /// Of a new user with this role.
    pub async fn of_user(world: &World, name: &str, role: &str) -> Browser {
        let password = "correct horse battery";
        let ask = serde_json::json!({"name": name, "role": role, "password": password, "reason": "test"});
        let added = world.command("/api/v1/users", ask).await;
        assert_eq!(added.status, 200, "{added:?}");
        Browser::logged_in(world, name, password).await
    }

    async fn logged_in(world: &World, name: &str, password: &str) -> Browser {
        let at = world.app().admin.expect("it has an admin listener");
        Browser::at(at, name, password).await
    }

    pub async fn at(at: SocketAddr, name: &str, password: &str) -> Browser {
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy().build().unwrap();
        let mut browser = Browser { client, at, cookie: String::new() };
        let form = [("name", name), ("password", password)];
        let entered = browser.send("/login", &form, true).await;
        assert_eq!(entered.status, 303, "{entered:?}");
        let cookie = entered.headers.get(SET_COOKIE).unwrap().to_str().unwrap();
        browser.cookie = cookie.split(';').next().unwrap().to_string();
        browser
    }

    pub async fn get(&self, path: &str) -> Answer {
        let request = self.client.get(format!("http://{}{path}", self.at)).header(COOKIE, &self.cookie);
        Answer::read(request.send().await.unwrap()).await
    }

    /// What goes on for as long as it is told.
    pub async fn open(&self, path: &str) -> reqwest::Response {
        let request = self.client.get(format!("http://{}{path}", self.at)).header(COOKIE, &self.cookie);
        request.send().await.unwrap()
    }

    /// A page that is there.
    pub async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }

    /// A form, with the proof that it is from a page of this session.
    pub async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let csrf = between(&self.page("/safe-mode").await, "data-csrf=\"", "\"").to_string();
        self.send(path, &[&[("csrf", csrf.as_str())], fields].concat(), true).await
    }

    /// The page that a form leads to.
    pub async fn follow(&self, path: &str, fields: &[(&str, &str)]) -> String {
        let answer = self.post(path, fields).await;
        assert_eq!(answer.status, 303, "{path}: {answer:?}");
        self.page(answer.header("location").unwrap()).await
    }

    /// A form as it is given, from our own page or from elsewhere.
    pub async fn send(&self, path: &str, fields: &[(&str, &str)], own: bool) -> Answer {
        let origin = if own { format!("http://{}", self.at) } else { "http://evil.example".into() };
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.client.post(format!("http://{}{path}", self.at)).header(COOKIE, &self.cookie);
        let request = request.header("origin", origin).header("content-type", "application/x-www-form-urlencoded");
        // One that is too large is answered before it was read: nothing else comes after it on its connection.
        Answer::read(request.header("connection", "close").body(body).send().await.unwrap()).await
    }

    /// Without the proof, with a wrong one, and from another site: nothing is done for any of them.
    pub async fn check_guarded(&self, path: &str, fields: &[(&str, &str)]) {
        assert_eq!(self.send(path, fields, true).await.status, 403, "{path} without a proof");
        let wrong = [&[("csrf", "AAAA")], fields].concat();
        assert_eq!(self.send(path, &wrong, true).await.status, 403, "{path} with a wrong proof");
        let csrf = between(&self.page("/safe-mode").await, "data-csrf=\"", "\"").to_string();
        let elsewhere = self.send(path, &[&[("csrf", csrf.as_str())], fields].concat(), false).await;
        assert_eq!(elsewhere.status, 403, "{path} from elsewhere");
    }
}

pub fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("`{before}` is not in {text}"));
    rest.split_once(after).unwrap_or_else(|| panic!("`{after}` does not follow in {text}")).0
}

/// All values of a field in a page.
pub fn values<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let field = format!("name=\"{name}\" value=\"");
    page.split(field.as_str()).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

pub fn check_says(page: &str, what: &[&str]) {
    for one in what {
        assert!(page.contains(one), "`{one}` is not in {page}");
    }
}
