//! Logging in by a provider of identities: a real one on a socket of its own, which signs with keys of its own, and browsers that keep
//! cookies as browsers do.

use crate::cli::ask;
use crate::console_browser::between;
use crate::process::{AGAIN, PATIENCE, Place, eventually};
use crate::world::{Answer, World};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use axum::Json;
use axum::Router;
use axum::extract::{Query, State};
use axum::http::header::{AUTHORIZATION, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clinch_core::user::Role;
use data_encoding::{BASE64, BASE64URL_NOPAD};
use reqwest::header::{COOKIE, SET_COOKIE};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

type Asked = BTreeMap<String, String>;

enum Signer {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

/// A key, with the name that it is published under.
struct Key {
    id: String,
    signer: Signer,
}

fn base64(bytes: &[u8]) -> String {
    BASE64URL_NOPAD.encode(bytes)
}

impl Key {
    fn ec(id: &str) -> Key {
        let signer = Signer::Ec(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap());
        Key { id: id.into(), signer }
    }

    fn rsa(id: &str) -> Key {
        Key { id: id.into(), signer: Signer::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()) }
    }

    fn head(&self) -> Value {
        let alg = match self.signer {
            Signer::Ec(_) => "ES256",
            Signer::Rsa(_) => "RS256",
        };
        json!({"alg": alg, "kid": self.id, "typ": "JWT"})
    }

    fn public(&self) -> Vec<u8> {
        match &self.signer {
            Signer::Ec(key) => key.public_key().as_ref().to_vec(),
            Signer::Rsa(key) => key.public_key().as_ref().to_vec(),
        }
    }

    fn jwk(&self) -> Value {
        match &self.signer {
            Signer::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": self.id,
                       "x": base64(&point[1..33]), "y": base64(&point[33..65])})
            }
            Signer::Rsa(key) => {
                let (n, e) = (key.public_key().modulus(), key.public_key().exponent());
                json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.id,
                       "n": base64(n.big_endian_without_leading_zero()), "e": base64(e.big_endian_without_leading_zero())})
            }
        }
    }

    fn sign(&self, text: &str) -> Vec<u8> {
        match &self.signer {
            Signer::Ec(key) => key.sign(&SystemRandom::new(), text.as_bytes()).unwrap().as_ref().to_vec(),
            Signer::Rsa(key) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).unwrap();
                signature
            }
        }
    }
}

/// How a token is spoilt.
#[derive(Clone, Copy, PartialEq)]
enum Forged {
    No,
    /// `alg: none`, and no signature.
    Unsigned,
    /// `alg: HS256`, with what everybody knows as the key.
    Keyed,
    /// The right key's name, another's signature.
    ByAnother,
}

/// What the provider does.
struct Plan {
    key: Key,
    published: Vec<Value>,
    /// Of whoever logs in; `null` takes a usual one away.
    claims: Value,
    forged: Forged,
    /// What the client must show.
    secret: Option<String>,
    /// Codes that were given out, with what was asked for.
    codes: HashMap<String, Asked>,
    given: usize,
    hangs: bool,
    /// How often it was asked for its document, its keys, and tokens.
    asked: [usize; 3],
}

struct Issuer {
    url: String,
    plan: Arc<Mutex<Plan>>,
    door: tokio::task::JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.door.abort();
    }
}

#[derive(Clone)]
struct Desk {
    url: String,
    plan: Arc<Mutex<Plan>>,
}

impl Issuer {
    async fn start(key: Key) -> Issuer {
        let plan = Plan {
            published: vec![key.jwk()],
            key,
            claims: json!({"preferred_username": "maya", "groups": ["ops"]}),
            forged: Forged::No,
            secret: None,
            codes: HashMap::new(),
            given: 0,
            hangs: false,
            asked: [0; 3],
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let plan = Arc::new(Mutex::new(plan));
        let routes = Router::new()
            .route("/.well-known/openid-configuration", get(discover))
            .route("/keys", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .with_state(Desk { url: url.clone(), plan: plan.clone() });
        let door = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Issuer { url, plan, door }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    fn settings(&self, more: &str) -> String {
        format!("oidc:\n  issuer: {}\n  client_id: clinch\n{more}", self.url)
    }

    /// The workspace of most stories: groups give roles.
    fn usual(&self) -> String {
        self.settings("  roles: {claim: groups, map: {admins: admin, ops: operator, all: viewer}}\n")
    }
}

async fn discover(State(desk): State<Desk>) -> Json<Value> {
    desk.plan.lock().unwrap().asked[0] += 1;
    let hangs = desk.plan.lock().unwrap().hangs;
    if hangs {
        std::future::pending::<()>().await;
    }
    let url = desk.url;
    Json(
        json!({"issuer": url, "authorization_endpoint": format!("{url}/authorize?tenant=1"), "token_endpoint": format!("{url}/token"),
                "jwks_uri": format!("{url}/keys"), "authorization_response_iss_parameter_supported": true}),
    )
}

async fn keys(State(desk): State<Desk>) -> Json<Value> {
    let mut plan = desk.plan.lock().unwrap();
    plan.asked[1] += 1;
    Json(json!({ "keys": plan.published }))
}

/// Whoever comes is logged in at once.
async fn authorize(State(desk): State<Desk>, Query(asked): Query<Asked>) -> Response {
    assert_eq!((asked["response_type"].as_str(), asked["client_id"].as_str()), ("code", "clinch"));
    assert_eq!((asked["scope"].as_str(), asked["tenant"].as_str()), ("openid profile email", "1"));
    assert_eq!((asked["code_challenge_method"].as_str(), asked["code_challenge"].len()), ("S256", 43));
    let mut plan = desk.plan.lock().unwrap();
    plan.given += 1;
    let code = format!("code-{}", plan.given);
    let mut back: url::Url = asked["redirect_uri"].parse().unwrap();
    back.query_pairs_mut()
        .append_pair("code", &code)
        .append_pair("state", &asked["state"])
        .append_pair("iss", &desk.url);
    plan.codes.insert(code, asked);
    (StatusCode::SEE_OTHER, [(LOCATION, back.to_string())]).into_response()
}

async fn token(State(desk): State<Desk>, headers: HeaderMap, body: String) -> Response {
    let form: Asked = url::form_urlencoded::parse(body.as_bytes()).into_owned().collect();
    let mut plan = desk.plan.lock().unwrap();
    plan.asked[2] += 1;
    let refuse = |word: &str| (StatusCode::BAD_REQUEST, Json(json!({ "error": word }))).into_response();
    let basic =
        plan.secret.as_ref().map(|secret| format!("Basic {}", BASE64.encode(format!("clinch:{secret}").as_bytes())));
    if headers.get(AUTHORIZATION).map(|value| value.to_str().unwrap()) != basic.as_deref() {
        return refuse("invalid_client");
    }
    // A code is good once.
    let Some(asked) = plan.codes.remove(&form["code"]) else { return refuse("invalid_grant") };
    assert_eq!((&*form["grant_type"], &form["redirect_uri"]), ("authorization_code", &asked["redirect_uri"]));
    let challenge = base64(digest(&SHA256, form["code_verifier"].as_bytes()).as_ref());
    if challenge != asked["code_challenge"] {
        return refuse("invalid_grant");
    }
    Json(json!({"access_token": "a", "token_type": "Bearer", "id_token": minted(&plan, &desk.url, &asked)}))
        .into_response()
}

fn minted(plan: &Plan, issuer: &str, asked: &Asked) -> String {
    let now = jiff::Timestamp::now().as_second();
    let mut claims =
        json!({"iss": issuer, "sub": "u-1", "aud": "clinch", "iat": now, "exp": now + 300, "nonce": asked["nonce"]});
    for (name, value) in plan.claims.as_object().unwrap() {
        claims[name] = value.clone();
    }
    let mut head = plan.key.head();
    match plan.forged {
        Forged::Unsigned => head["alg"] = "none".into(),
        Forged::Keyed => head["alg"] = "HS256".into(),
        Forged::No | Forged::ByAnother => {}
    }
    let signed = format!("{}.{}", base64(head.to_string().as_bytes()), base64(claims.to_string().as_bytes()));
    let signature = match plan.forged {
        Forged::No => plan.key.sign(&signed),
        Forged::Unsigned => Vec::new(),
        Forged::Keyed => {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &plan.key.public());
            hmac::sign(&key, signed.as_bytes()).as_ref().to_vec()
        }
        Forged::ByAnother => Key::ec("x").sign(&signed),
    };
    format!("{signed}.{}", base64(&signature))
}

/// Follows nothing by itself.
fn wire() -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    client.timeout(PATIENCE).build().unwrap()
}

/// A browser: it keeps cookies, and brings along those that may be brought from where it comes.
#[derive(Clone, Default)]
struct Browser {
    console: String,
    /// Each with its rules.
    jar: BTreeMap<String, (String, String)>,
}

/// Who led it to an address.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Ourselves,
    Elsewhere,
}

impl Browser {
    fn new(console: &str) -> Browser {
        Browser { console: console.into(), ..Browser::default() }
    }

    fn of(world: &World) -> Browser {
        Browser::new(&world.admin_url(""))
    }

    async fn get(&mut self, path: &str, from: From) -> Answer {
        let is_brought = |rules: &str| from == From::Ourselves || rules.contains("SameSite=Lax");
        let brought = self.jar.iter().filter(|(_, (_, rules))| is_brought(rules));
        let cookies: Vec<String> = brought.map(|(name, (value, _))| format!("{name}={value}")).collect();
        let request = wire().get(format!("{}{path}", self.console)).header(COOKIE, cookies.join("; "));
        let answer = Answer::read(request.send().await.unwrap()).await;
        self.keep(&answer);
        answer
    }

    fn keep(&mut self, answer: &Answer) {
        for set in answer.headers.get_all(SET_COOKIE) {
            let (pair, rules) = set.to_str().unwrap().split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            assert!(name.starts_with("__Host-") && rules.contains("Secure; HttpOnly; SameSite="), "{set:?}");
            match rules.contains("Max-Age=0") {
                true => drop(self.jar.remove(name)),
                false => drop(self.jar.insert(name.into(), (value.into(), rules.into()))),
            }
        }
    }

    /// To the provider, and the path back from there.
    async fn sent_back(&mut self, begin: &str) -> String {
        let sent = self.get(begin, From::Ourselves).await;
        assert_eq!(sent.status, 303, "{sent:?}");
        let answer = Answer::read(wire().get(sent.header("location").unwrap()).send().await.unwrap()).await;
        let back = answer.header("location").unwrap();
        back.strip_prefix(&self.console).unwrap_or_else(|| panic!("{back}")).to_string()
    }

    /// All the way, and what is answered at its end.
    async fn log_in(&mut self) -> Answer {
        let back = self.sent_back("/login/oidc").await;
        self.get(&back, From::Elsewhere).await
    }

    async fn is_in(&mut self) -> bool {
        self.get("/", From::Ourselves).await.status == 200
    }

    /// He is told this, and is not in.
    async fn check_refused(&mut self, status: u16, said: &str) {
        let answer = self.log_in().await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.contains(said), "{said}: {}", answer.body);
        assert!(!self.is_in().await && self.jar.is_empty(), "{said}: {:?}", self.jar.keys());
    }
}

async fn role_of(world: &World, name: &str) -> Option<Role> {
    let user = world.app().house.store.user(name.parse().unwrap()).await.unwrap();
    user.map(|user| user.role)
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_who_logs_in_by_a_provider_is_a_user_with_the_role_of_his_group() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.usual())]).await;
    let mut browser = Browser::of(&world);
    let page = browser.get("/login?back=/jobs", From::Ourselves).await.body;
    let host = issuer.url.strip_prefix("http://").unwrap();
    assert!(page.contains(&format!("Log in with {host}")), "{page}");
    let begin = between(&page, "class=\"button\" href=\"", "\"").replace("&amp;", "&");

    let back = browser.sent_back(&begin).await;
    let (_, rules) = &browser.jar["__Host-clinch-oidc"];
    assert_eq!(rules, " Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age=600");
    let entered = browser.get(&back, From::Elsewhere).await;
    assert_eq!(entered.status, 200, "{entered:?}");
    assert!(entered.body.contains(r#"<meta http-equiv="refresh" content="0;url=/jobs">"#), "{}", entered.body);
    assert_eq!(browser.jar.keys().collect::<Vec<_>>(), ["__Host-clinch"], "what it took along is used up");
    assert_eq!(browser.jar["__Host-clinch"].1, " Path=/; Secure; HttpOnly; SameSite=Strict");
    // Had he been redirected, the cookie would have stayed behind.
    assert_eq!(browser.get("/jobs", From::Elsewhere).await.status, 303);
    assert_eq!(browser.get("/jobs", From::Ourselves).await.status, 200);
    assert_eq!(role_of(&world, "maya").await, Some(Role::Operator));

    let rows = ask(&world, &["audit", "ls", "--json"]).await.json();
    let acts: Vec<_> = rows["audit"].as_array().unwrap().iter().map(|row| (&row["action"], &row["actor"])).collect();
    let acts: Vec<_> = acts.iter().map(|(action, actor)| (action.as_str().unwrap(), actor.as_str().unwrap())).collect();
    assert_eq!(acts[..3], [("me.log_in", "maya"), ("user.link", "clinch"), ("user.add", "clinch")], "{rows}");
    assert!(rows["audit"][0]["after"].as_str().unwrap().contains(r#""with":"oidc""#), "{rows}");

    // He is the same one the next time, whatever he is called then, and has what his groups give him now.
    issuer.plan().claims = json!({"preferred_username": "m.k", "groups": ["all"]});
    let mut other = Browser::of(&world);
    assert_eq!(other.log_in().await.status, 200);
    assert_eq!((role_of(&world, "maya").await, role_of(&world, "m.k").await), (Some(Role::Viewer), None));
    assert!(!browser.is_in().await, "who has less is logged out");
    issuer.plan().claims = json!({"groups": ["sales"], "preferred_username": "maya"});
    Browser::of(&world).check_refused(403, "nobody has given you a role here").await;
    assert!(!other.is_in().await, "who has nothing too");
    // The provider was asked once who it is and what it signs with.
    assert_eq!(issuer.plan().asked, [1, 1, 3]);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_client_with_a_secret_shows_it_and_nobody_else_sees_it() {
    let issuer = Issuer::start(Key::rsa("r-1")).await;
    issuer.plan().secret = Some("hunter2-of-the-client".into());
    let place = Place::new(&[AGAIN]).await;
    let settings =
        issuer.settings("  client_secret: ${secrets.OIDC_SECRET}\n  roles: {claim: groups, map: {ops: operator}}\n");
    place.write("clinch.yml", &settings);
    let mut refused = place.spawn(&[]);
    assert_eq!(refused.exited().await.code(), Some(6), "{}", refused.said());
    assert!(refused.said().contains("OIDC_SECRET"), "{}", refused.said());

    let server = place.start_with(&[("OIDC_SECRET", "hunter2-of-the-client")]).await;
    let mut browser = Browser::new(&server.admin);
    assert_eq!(browser.log_in().await.status, 200, "{}", server.said());
    assert!(browser.is_in().await);
    let jar = browser.jar.values().map(|(value, _)| value.clone()).collect::<String>();
    issuer.plan().secret = Some("another".into());
    Browser::new(&server.admin).check_refused(401, "it did not take the code (invalid_client)").await;
    let said = server.said();
    for secret in ["hunter2", &jar, "code-1", "eyJ"] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_token_that_the_provider_did_not_sign_for_this_log_in_lets_nobody_in() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.usual())]).await;
    let now = jiff::Timestamp::now().as_second();
    let usual = issuer.plan().claims.clone();
    for (claim, value, said) in [
        ("nonce", json!("another"), "for another log-in"),
        ("nonce", json!(null), "for another log-in"),
        ("aud", json!("another"), "for another client"),
        ("aud", json!(["clinch", "another"]), "for another client"),
        ("azp", json!("another"), "for another client"),
        ("iss", json!("http://evil.example"), "of another issuer"),
        ("exp", json!(now - 120), "has expired"),
        ("iat", json!(now + 3_600), "from the future"),
        ("sub", json!(""), "whom it is about"),
    ] {
        issuer.plan().claims[claim] = value;
        Browser::of(&world).check_refused(401, said).await;
        issuer.plan().claims = usual.clone();
    }
    for (forged, said) in [
        (Forged::Unsigned, "signed in a way that is not taken"),
        (Forged::Keyed, "signed in a way that is not taken"),
        (Forged::ByAnother, "signature of the id_token is wrong"),
    ] {
        issuer.plan().forged = forged;
        Browser::of(&world).check_refused(401, said).await;
    }
    assert_eq!(issuer.plan().asked[1], 1, "a wrong signature is no reason to ask for the keys again");
    assert!(world.app().house.store.users().await.unwrap().is_empty(), "nobody came of it");
    issuer.plan().forged = Forged::No;
    assert_eq!(Browser::of(&world).log_in().await.status, 200);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_key_that_is_not_known_is_asked_for_once_and_a_new_one_is_taken() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.usual())]).await;
    assert_eq!(Browser::of(&world).log_in().await.status, 200);
    assert_eq!(issuer.plan().asked[1], 1);
    issuer.plan().key = Key::ec("k-2");
    Browser::of(&world).check_refused(401, "a key that the provider does not publish").await;
    assert_eq!(issuer.plan().asked[1], 2, "once more, and then it was refused");
    // Rotated: the new key is published, of another kind even.
    let key = Key::rsa("k-3");
    issuer.plan().published = vec![key.jwk()];
    issuer.plan().key = key;
    assert_eq!(Browser::of(&world).log_in().await.status, 200);
    assert_eq!(issuer.plan().asked[1], 3);
    assert_eq!(Browser::of(&world).log_in().await.status, 200);
    assert_eq!(issuer.plan().asked[1], 3, "it is known from then on");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_an_answer_counts_once_and_only_in_the_browser_that_asked() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.usual())]).await;
    let stray = "not the answer to a log-in that this browser began";
    let check = async |browser: &mut Browser, back: &str, status: u16, said: &str| {
        let answer = browser.get(back, From::Elsewhere).await;
        assert_eq!((answer.status, answer.body.contains(said)), (status, true), "{said}: {answer:?}");
        assert!(!browser.is_in().await, "{said}");
    };
    // Somebody else's answer, in a browser that began nothing, and in one that began something else.
    let mut maya = Browser::of(&world);
    let back = maya.sent_back("/login/oidc").await;
    check(&mut Browser::of(&world), &back, 400, stray).await;
    let mut eve = Browser::of(&world);
    eve.sent_back("/login/oidc").await;
    check(&mut eve, &back, 400, stray).await;
    // Her own state with somebody else's code: the provider sees that she did not ask for it.
    let own = eve.sent_back("/login/oidc").await;
    let code = between(&back, "code=", "&");
    let mixed = own.replace(between(&own, "code=", "&"), code);
    check(&mut eve, &mixed, 401, "it did not take the code (invalid_grant)").await;
    assert_eq!(issuer.plan().asked[2], 1, "the others were not worth a question");

    let before = maya.sent_back("/login/oidc").await;
    let mut copy = maya.clone();
    assert_eq!(maya.get(&before, From::Elsewhere).await.status, 200);
    assert!(maya.is_in().await);
    check(&mut copy, &before, 400, stray).await;
    assert_eq!(issuer.plan().asked[2], 2, "what was used is not tried again");

    let mut declined = Browser::of(&world);
    let back = declined.sent_back("/login/oidc").await;
    let state = between(&back, "state=", "&");
    let path = format!("/login/oidc/callback?error=access_denied%3Cb%3E&state={state}");
    check(&mut declined, &path, 403, "did not let you in: access_denied&#60;b&#62;").await;
    let mut other = Browser::of(&world);
    let back = other.sent_back("/login/oidc").await;
    let (back, _) = back.split_once("&iss=").unwrap();
    check(&mut other, back, 401, "another provider answered").await;
    let back = other.sent_back("/login/oidc").await;
    let (back, _) = back.split_once("&iss=").unwrap();
    check(&mut other, &format!("{back}&iss=http%3A%2F%2Fevil.example"), 401, "another provider answered").await;
    for bare in ["", "?state=&code=", "?state=x&code=y"] {
        check(&mut Browser::of(&world), &format!("/login/oidc/callback{bare}"), 400, stray).await;
    }
    let post = world.client.post(world.admin_url("/login/oidc/callback")).header("sec-fetch-site", "same-origin");
    assert_eq!(post.send().await.unwrap().status(), 405);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_nobody_is_led_to_another_site_by_a_log_in() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.usual())]).await;
    for other in [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "\" http-equiv=x",
    ] {
        let asked: String = url::form_urlencoded::Serializer::new(String::new()).append_pair("back", other).finish();
        let mut browser = Browser::of(&world);
        let back = browser.sent_back(&format!("/login/oidc?{asked}")).await;
        let entered = browser.get(&back, From::Elsewhere).await;
        assert_eq!(entered.status, 200, "{entered:?}");
        assert!(entered.body.contains("content=\"0;url=/\""), "{other}: {}", entered.body);
        // The same in a cookie that somebody put there.
        let back = browser.sent_back("/login/oidc").await;
        let (cookie, rules) = browser.jar["__Host-clinch-oidc"].clone();
        let (kept, _) = cookie.rsplit_once('.').unwrap();
        let cookie = format!("{kept}.{}", base64(other.as_bytes()));
        browser.jar.insert("__Host-clinch-oidc".into(), (cookie, rules));
        let entered = browser.get(&back, From::Elsewhere).await;
        assert!(entered.body.contains("content=\"0;url=/\""), "{other}: {}", entered.body);
    }
    // By another name the console is not spoken to, and the provider is told no other name than its own.
    let request = world.client.get(world.admin_url("/login/oidc")).header("host", "evil.example");
    assert_eq!(request.send().await.unwrap().status(), 421);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_provider_that_hangs_or_is_gone_keeps_nobody_from_his_password() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.usual())]).await;
    issuer.plan().hangs = true;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut browser = Browser::of(&world);
        waiting.push(tokio::spawn(async move { browser.get("/login/oidc", From::Ourselves).await }));
    }
    eventually("the provider is asked", PATIENCE, async || issuer.plan().asked[0] > 0).await;
    crate::console_browser::Browser::of(&world).await.page("/").await;
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert_eq!(answer.status, 502, "{answer:?}");
        assert!(answer.body.contains("cannot be asked at the moment: no answer in time"), "{}", answer.body);
    }
    issuer.plan().hangs = false;
    assert_eq!(Browser::of(&world).log_in().await.status, 200, "as soon as it answers");

    // Gone between the way there and the way back.
    let mut browser = Browser::of(&world);
    let back = browser.sent_back("/login/oidc").await;
    drop(issuer);
    let answer = browser.get(&back, From::Elsewhere).await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.body.contains("cannot be asked at the moment"), "{}", answer.body);
    crate::console_browser::Browser::of(&world).await.page("/").await;
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_name_alone_makes_nobody_a_user_who_was_there_before() {
    let issuer = Issuer::start(Key::ec("k-1")).await;
    let world = World::new(&[("clinch.yml", &issuer.settings(
        "  domains: [example.com]\n  roles: {claim: groups, map: {ops: operator}}\n  users: {ada@example.com: ada, u-7: ben}\n",
    ))])
    .await;
    for (name, role) in [("ada", "approver"), ("maya", "admin")] {
        assert_eq!(ask(&world, &["users", "add", name, "--role", role]).await.code, 0);
    }
    let plan = |claims: Value| issuer.plan().claims = claims;
    let of = |sub: &str, email: &str, verified: bool, groups: &str| {
        let name = email.split('@').next().unwrap();
        json!({"sub": sub, "preferred_username": name, "email": email, "email_verified": verified, "groups": groups})
    };
    plan(of("u-1", "maya@example.com", true, "ops"));
    Browser::of(&world).check_refused(403, "A user here is called `maya` already").await;
    plan(of("u-1", "maya@evil.example", true, "ops"));
    Browser::of(&world).check_refused(403, "only people of example.com are let in").await;
    plan(of("u-2", "ada@example.com", false, "none"));
    Browser::of(&world).check_refused(403, "only people of example.com are let in").await;
    // An admin said so: he is the user who was added, with the role that he was given.
    plan(of("u-2", "ada@example.com", true, "none"));
    assert_eq!(Browser::of(&world).log_in().await.status, 200);
    assert_eq!(role_of(&world, "ada").await, Some(Role::Approver));
    // From then on it is he, and nobody who gets his address later.
    plan(of("u-3", "ada@example.com", true, "none"));
    Browser::of(&world).check_refused(403, "A user here is called `ada` already").await;
    // Invited, and not added: the role is missing.
    plan(of("u-7", "b@example.com", true, "none"));
    Browser::of(&world).check_refused(403, "nobody has given you a role here").await;
    assert_eq!((role_of(&world, "maya").await, role_of(&world, "ben").await), (Some(Role::Admin), None));
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_without_a_provider_there_is_no_way_in_by_one() {
    let world = World::new(&[]).await;
    let mut browser = Browser::of(&world);
    assert!(!browser.get("/login", From::Ourselves).await.body.contains("Log in with"));
    for path in ["/login/oidc", "/login/oidc/callback?state=x&code=y"] {
        let answer = browser.get(path, From::Ourselves).await;
        assert_eq!(
            (answer.status, answer.body.contains("No provider of identities is set up")),
            (404, true),
            "{answer:?}"
        );
    }
    world.close_and_verify().await;
}
