//! People: what each role may ask and do, how they log in, and what their tokens are for.

use crate::cli::{ask, clinch_as, clinch_with};
use crate::world::{Answer, OK, Reply, World};
use clinch::api;
use clinch_core::job::Word;
use clinch_core::user::Role;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const PASSWORD: &str = "correct horse battery staple";

/// Asks the admin listener something, as whoever has this token.
async fn request(world: &World, method: &Method, path: &str, token: Option<&str>, body: &str) -> Answer {
    let request = world.client.request(method.clone(), world.admin_url(path)).body(body.to_string());
    let request = token.into_iter().fold(request, |request, token| request.bearer_auth(token));
    Answer::read(request.send().await.unwrap()).await
}

async fn add(world: &World, name: &str, role: &str) -> String {
    let said = ask(world, &["users", "add", name, "--role", role]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    said.out.trim().to_string()
}

async fn as_user(world: &World, token: &str, arguments: &[&str]) -> crate::cli::Said {
    let (data_dir, token) = (world.data_dir(), token.to_string());
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let ask = move || clinch_as(&data_dir, &token, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// The command line, with something typed.
async fn type_in(world: &World, typed: &str, token: Option<&str>, arguments: &[&str]) -> crate::cli::Said {
    let (data_dir, typed, token) = (world.data_dir(), typed.to_string(), token.map(String::from));
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let ask = move || {
        clinch_with(&data_dir, token.as_deref(), &typed, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// A path that could be there.
fn filled(path: &str, with: &str) -> String {
    path.split('/')
        .map(|part| match part {
            "{id}" if path.contains("/events/") => "evt_01HZX5T0N8W2A",
            "{id}" if path.contains("/replays/") => "rpl_01HZX5T0N8W2A",
            "{id}" if path.contains("/users/") => "key_0f1e2d3c4b5a6978",
            "{id}" if path.contains("/tokens/") => "tok_0f1e2d3c4b5a6978",
            "{id}" | "{job}" => "job_01HZX5T0N8W2A",
            part if part.starts_with('{') => with,
            part => part,
        })
        .collect::<Vec<_>>()
        .join("/")
}

/// All that a refused request could have changed.
async fn state(world: &World) -> String {
    let store = &world.app().house.store;
    let head = store.inspect(None).await.unwrap().head;
    let users: Vec<_> = store.users().await.unwrap().iter().map(|user| (user.name.clone(), user.role)).collect();
    let jobs: Vec<_> = world.jobs().await.iter().map(|job| (job.id, job.word, job.replays)).collect();
    let (controls, tokens) = (store.controls().await.unwrap(), store.user_tokens().await.unwrap().len());
    let senders = store.tokens().await.unwrap();
    format!("{head:?} {users:?} {jobs:?} {controls:?} {tokens} {senders:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_t095_every_route_is_open_to_the_roles_of_its_permission_and_refused_ones_change_nothing() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401)]);
    world.post_and_wait("k-1", r#"{"order":7}"#, Word::Dead).await;
    let mut tokens = BTreeMap::new();
    for role in Role::ALL {
        tokens.insert(role.word(), add(&world, &format!("a-{role}"), role.word()).await);
    }
    let narrow = ask(&world, &["users", "token", "a-admin", "--source", "orders"]).await.out.trim().to_string();
    let routes = api::all();
    assert!(routes.len() > 50, "{}", routes.len());
    for route in &routes {
        let path = filled(route.path, "a-viewer");
        let told = format!("{} {path}", route.method);
        // Complete enough for most of them to do something, if they were let.
        let body = json!({"reason": "a test", "role": "admin", "name": "eve", "vote": "approve"}).to_string();
        let before = state(&world).await;
        for stranger in [None, Some("clk_wrong"), Some("cls_wrong")] {
            assert_eq!(request(&world, &route.method, &path, stranger, &body).await.status, 401, "{told}");
        }
        for role in Role::ALL.into_iter().filter(|role| !role.may(route.permission)) {
            let refused = request(&world, &route.method, &path, Some(&tokens[role.word()]), &body).await;
            let problem = refused.check_problem(403, "not-allowed");
            assert!(problem["detail"].as_str().unwrap().contains(role.word()), "{told}: {problem}");
        }
        if !route.of_source {
            request(&world, &route.method, &path, Some(&narrow), &body).await.check_problem(403, "not-allowed");
        }
        assert_eq!(state(&world).await, before, "{told}");
    }
    // What the role allows is let through to whatever it comes to. Afterwards: some of it goes on by itself.
    for route in &routes {
        let path = filled(route.path, "a-viewer");
        let told = format!("{} {path}", route.method);
        for role in Role::ALL.into_iter().filter(|role| role.may(route.permission)) {
            let let_in = request(&world, &route.method, &path, Some(&tokens[role.word()]), "").await;
            assert!(![401, 403, 405].contains(&let_in.status) && let_in.status < 500, "{told} as {role}: {let_in:?}");
        }
    }
    // The table is all there is: what is not in it is not there.
    for path in ["/api/v1", "/api/v1/", "/api/v1/roles", "/api/v2/jobs", "/api/v1/jobs/"] {
        request(&world, &Method::GET, path, Some(&tokens["admin"]), "").await.check_problem(404, "not-found");
    }
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t093_t094_t097_no_path_method_or_word_gets_more_out_of_the_api_than_it_has() {
    let world = World::new(&[]).await;
    let token = add(&world, "maya", "admin").await;
    let secret = token.trim_start_matches("clk_");
    for path in [
        "/api/v1/..%2F..%2Fetc%2Fpasswd",
        "/api/..%252f..%252fetc%252fpasswd",
        "/api/v1/jobs/..%2F..%2F..%2Fetc%2Fpasswd",
        "/api/v1/sources/..%2F..%2Fetc%2Fpasswd/rejections",
        "/static/..%2F..%2Fetc%2Fpasswd",
        "/static/..%252f..%252fetc%252fpasswd",
    ] {
        let answer = request(&world, &Method::GET, path, Some(&token), "").await;
        assert!([400, 404].contains(&answer.status), "{path}: {answer:?}");
        assert!(!answer.body.contains("root:"), "{path}: {answer:?}");
    }
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"];
    let routes = api::all();
    for route in &routes {
        let taken: Vec<&Method> = routes.iter().filter(|other| other.path == route.path).map(|r| &r.method).collect();
        for method in methods.map(|method| Method::from_bytes(method.as_bytes()).unwrap()) {
            if taken.contains(&&method) {
                continue;
            }
            let answer = request(&world, &method, &filled(route.path, "x"), Some(&token), "").await;
            assert_eq!(answer.status, 405, "{method} {}: {answer:?}", route.path);
            let allow = answer.header("allow").unwrap();
            assert!(taken.iter().all(|method| allow.contains(method.as_str())), "{method} {}: {allow}", route.path);
            assert!(!answer.body.contains("PATH=") && !answer.body.contains(secret), "{answer:?}");
        }
    }
    for word in ["'", "\"", "';DROP TABLE job;--", "1 OR 1=1", "%", "\\", "$1", "{{7*7}}", "../../x", "\u{202e}x", "é"]
    {
        let encoded: String = url::form_urlencoded::byte_serialize(word.as_bytes()).collect();
        let body = json!({"reason": word, "name": word, "role": word, "scope": word, "query": word, "sender": word});
        for route in &routes {
            let path = route.path.split('/').map(|part| if part.starts_with('{') { &encoded } else { part });
            let path = path.collect::<Vec<_>>().join("/").replace('+', "%20");
            let asked = format!("{path}?flow={encoded}&queue={encoded}&key={encoded}&actor={encoded}&q={encoded}");
            for path in [path, asked] {
                let answer = request(&world, &route.method, &path, Some(&token), &body.to_string()).await;
                assert!(answer.status < 500, "{} {path}: {answer:?}", route.method);
            }
        }
    }
    let users = world.app().house.store.users().await.unwrap();
    assert_eq!(users.len(), 1, "nobody came of it");
    world.close_and_verify().await;
}

const OTHER_FLOW: &str = "
version: 1
name: others
triggers:
  - http:
      path: /hooks/others
      idempotency: {key_from: 'header:Idempotency-Key', ttl: 48h}
steps:
  - name: enqueue
    queue: {name: orders}
";

#[tokio::test(flavor = "multi_thread")]
async fn t096_a_token_of_one_source_lists_and_shows_what_came_from_there_and_nothing_else() {
    let world = World::new(&[("flows/others.yml", OTHER_FLOW)]).await;
    world.target.script("/charge", [Reply::Status(401)]);
    let own = world.post_and_wait("k-1", r#"{"order":7}"#, Word::Dead).await.row;
    let other = world.deliver("/hooks/others", &[("idempotency-key", "k-2")], r#"{"order":8}"#).await.job();
    let other = world.wait(other, Word::Dead).await.row;
    add(&world, "maya", "admin").await;
    let made = ask(&world, &["users", "token", "maya", "--source", "orders", "--expires", "90d"]).await;
    assert_eq!(made.code, 0, "{}", made.err);
    let token = made.out.trim();
    assert_eq!(ask(&world, &["users", "token", "maya", "--source", "nothing"]).await.code, 2);

    let get = async |path: String| request(&world, &Method::GET, &path, Some(token), "").await;
    for (list, is_there) in [
        ("jobs", true),
        ("jobs?state=dead", true),
        ("dead", true),
        ("events", true),
        ("jobs?flow=others", false),
        ("jobs?state=running", false),
        (&format!("jobs?q=job:{}", other.id), false),
        ("jobs?q=key:k-2", false),
    ] {
        let listed = get(format!("/api/v1/{list}")).await;
        assert_eq!(listed.status, 200, "{listed:?}");
        let shows = |row: &clinch_store::read::JobRow| {
            listed.body.contains(&row.id.to_string()) || listed.body.contains(&row.event.to_string())
        };
        assert_eq!((shows(&own), shows(&other)), (is_there, false), "{list}: {listed:?}");
    }
    for list in ["jobs?q=source:others", "dead?q=source:others", "events?source=others"] {
        get(format!("/api/v1/{list}")).await.check_problem(403, "not-allowed");
    }
    assert_eq!(get(format!("/api/v1/jobs/{}", own.id)).await.status, 200);
    assert_eq!(get(format!("/api/v1/events/{}", own.event)).await.status, 200);
    get(format!("/api/v1/jobs/{}", other.id)).await.check_problem(404, "not-found");
    get(format!("/api/v1/events/{}", other.event)).await.check_problem(404, "not-found");
    let me = get("/api/v1/me".into()).await.json();
    assert_eq!((&me["name"], &me["source"]), (&json!("maya"), &json!("orders")));
    for route in api::all().iter().filter(|route| !route.of_source) {
        let path = filled(route.path, "maya");
        request(&world, &route.method, &path, Some(token), "{}").await.check_problem(403, "not-allowed");
    }
    let listed = ask(&world, &["users", "tokens", "maya", "--json"]).await.json();
    let narrow = &listed["tokens"].as_array().unwrap().iter().find(|token| token["source"] == "orders").unwrap();
    assert!(narrow["used_at"].is_string() && narrow["expires_at"].is_string(), "{narrow}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_role_a_token_and_a_user_are_taken_away_at_once() {
    let world = World::new(&[]).await;
    let maya = add(&world, "maya", "operator").await;
    assert_eq!(as_user(&world, &maya, &["pause", "queue:orders", "--reason", "a look"]).await.code, 0);
    let me = as_user(&world, &maya, &["users", "me"]).await;
    assert!(me.out.starts_with("maya, operator; may read, replay"), "{}", me.out);

    assert_eq!(ask(&world, &["users", "role", "maya", "viewer", "--reason", "rotation"]).await.code, 0);
    let refused = as_user(&world, &maya, &["resume", "queue:orders", "--reason", "enough"]).await;
    assert_eq!((refused.code, refused.out.as_str()), (4, ""), "{}", refused.err);
    assert!(refused.err.contains("CL0502") && refused.err.contains("viewer"), "{}", refused.err);
    assert_eq!(as_user(&world, &maya, &["pauses"]).await.code, 0, "she looks");
    assert_eq!(ask(&world, &["users", "token", "maya", "--role", "operator"]).await.code, 5, "no more than she has");

    let tokens = ask(&world, &["users", "tokens", "maya", "--json"]).await.json();
    let id = tokens["tokens"][0]["id"].as_str().unwrap().to_string();
    assert_eq!(ask(&world, &["users", "rm-token", "maya", &id, "--reason", "it leaked"]).await.code, 0);
    assert_eq!(ask(&world, &["users", "rm-token", "maya", &id]).await.code, 3);
    assert_eq!(as_user(&world, &maya, &["pauses"]).await.code, 4);
    let another = ask(&world, &["users", "token", "maya"]).await.out.trim().to_string();
    assert_eq!(as_user(&world, &another, &["pauses"]).await.code, 0);
    assert_eq!(ask(&world, &["users", "rm", "maya"]).await.code, 0);
    assert_eq!(as_user(&world, &another, &["pauses"]).await.code, 4);
    let rows = ask(&world, &["audit", "ls", "--action", "user.*", "--json"]).await.json();
    let told: Vec<&str> = rows["audit"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(told, ["user.remove", "user.token.make", "user.token.remove", "user.role", "user.add"]);
    world.close_and_verify().await;
}

/// What the route lets through is let through by the record, too.
#[tokio::test(flavor = "multi_thread")]
async fn k1_every_role_does_what_it_is_for_under_its_own_name() {
    let world = World::new(&[]).await;
    world.target.script("/charge", [Reply::Status(401), Reply::Status(401), OK]);
    let first = world.post_and_wait("k-1", r#"{"order":7}"#, Word::Dead).await.row;
    let second = world.post_and_wait("k-2", r#"{"order":8}"#, Word::Dead).await.row;
    let (job, dropped, event) = (first.id.to_string(), second.id.to_string(), second.event.to_string());
    let why = ["--reason", "a test"];
    let acts: [(&str, &str, &[&str]); 15] = [
        ("operator", "replay.plan", &["replay", "plan", "flow:orders"]),
        ("operator", "pause.set", &["pause", "queue:orders", why[0], why[1]]),
        ("operator", "pause.end", &["resume", "queue:orders"]),
        ("operator", "safe_mode.on", &["safe-mode", "on", why[0], why[1]]),
        ("growth", "safe_mode.off", &["safe-mode", "off"]),
        ("operator", "job.drop.ask", &["dlq", "drop", &dropped, why[0], why[1]]),
        ("admin", "job.drop", &["dlq", "drop", "confirm", &dropped, why[0], why[1]]),
        ("operator", "job.undrop", &["dlq", "undrop", &dropped, why[0], why[1]]),
        ("operator", "job.replay", &["replay", &job, why[0], why[1], "--wait"]),
        ("operator", "setting.set", &["set", "worker.charge.retry.max_attempts", "2", why[0], why[1]]),
        ("operator", "setting.unset", &["unset", "worker.charge.retry.max_attempts", why[0], why[1]]),
        ("admin", "token.issue", &["token", "new", "--sender", "shop"]),
        ("admin", "user.add", &["users", "add", "eve", "--role", "viewer"]),
        ("admin", "data.forget", &["forget", "--event", &event, why[0], why[1]]),
        ("admin", "keys.rotate", &["keys", "rotate"]),
    ];
    let mut tokens = BTreeMap::new();
    for role in Role::ALL {
        tokens.insert(role.word(), add(&world, &format!("a-{role}"), role.word()).await);
    }
    for (role, action, arguments) in acts {
        let said = as_user(&world, &tokens[role], arguments).await;
        assert_eq!(said.code, 0, "{role}: {arguments:?}: {}{}", said.out, said.err);
        let row = ask(&world, &["audit", "ls", "--actor", &format!("a-{role}"), "--limit", "1", "--json"]).await.json();
        assert_eq!(row["audit"][0]["action"], action, "{role}: {arguments:?}: {row}");
    }
    world.close_and_verify().await;
}

/// A browser, as far as logging in goes.
struct Browser<'a> {
    world: &'a World,
    cookie: Option<String>,
}

impl Browser<'_> {
    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let form: String = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self.world.client.post(self.world.admin_url(path)).header("sec-fetch-site", "same-origin");
        Answer::read(self.carry(request).body(form).send().await.unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::read(self.carry(self.world.client.get(self.world.admin_url(path))).send().await.unwrap()).await
    }

    fn carry(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        self.cookie.iter().fold(request, |request, cookie| request.header("cookie", cookie))
    }

    /// Whether it let him in; then he keeps the cookie.
    async fn log_in(&mut self, fields: &[(&str, &str)]) -> bool {
        let answer = self.post("/login", fields).await;
        match answer.status {
            303 => {
                let set = answer.header("set-cookie").unwrap();
                let (cookie, rules) = set.split_once(';').unwrap();
                assert!(cookie.starts_with("__Host-clinch=") && cookie.len() == 14 + 43, "{set}");
                assert_eq!(rules, " Path=/; Secure; HttpOnly; SameSite=Strict");
                self.cookie = Some(cookie.to_string());
                true
            }
            status => {
                assert_eq!((status, answer.header("set-cookie")), (401, None), "{answer:?}");
                false
            }
        }
    }

    async fn is_in(&self) -> bool {
        match self.get("/").await.status {
            200 => true,
            status => {
                assert_eq!(status, 303, "to the log-in");
                false
            }
        }
    }
}

fn browser(world: &World) -> Browser<'_> {
    Browser { world, cookie: None }
}

fn named<'a>(name: &'a str, password: &'a str) -> [(&'a str, &'a str); 2] {
    [("name", name), ("password", password)]
}

#[tokio::test(flavor = "multi_thread")]
async fn t101_a_password_logs_in_and_the_log_in_ends_for_good() {
    let world = World::new(&[]).await;
    let typed = format!("{PASSWORD}\n");
    let added = type_in(&world, &typed, None, &["users", "add", "maya", "--role", "operator", "--password"]).await;
    assert_eq!((added.code, added.out.trim()), (0, "maya is a user: operator"), "{}", added.err);
    let short = type_in(&world, "short\n", None, &["users", "add", "ben", "--role", "viewer", "--password"]).await;
    assert_eq!(short.code, 2, "{}", short.err);
    assert!(short.err.contains("12 characters"), "{}", short.err);

    let mut maya = browser(&world);
    for (name, password) in [("maya", "wrong horse battery"), ("eve", PASSWORD), ("maya", ""), ("admin", PASSWORD)] {
        assert!(!maya.log_in(&named(name, password)).await, "{name}");
    }
    assert!(!maya.is_in().await);
    assert!(maya.log_in(&named("maya", PASSWORD)).await && maya.is_in().await);
    let first = maya.cookie.clone();
    assert!(maya.log_in(&named("maya", PASSWORD)).await);
    assert_ne!(maya.cookie, first, "another secret with every log-in");
    assert!(!Browser { cookie: first, ..maya }.is_in().await, "the one before it is over");

    // A cookie opens no route of the API.
    assert_eq!(maya.get("/api/v1/jobs").await.status, 401);
    let page = maya.get("/").await.body;
    let csrf = page.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_string();
    let out = maya.post("/logout", &[("csrf", &csrf)]).await;
    assert!(out.header("set-cookie").unwrap().ends_with("Max-Age=0"), "{out:?}");
    assert!(!maya.is_in().await, "also for who has kept the cookie");

    // Another role, another password, and the end: each logs out at once.
    let changes: [&[&str]; 3] = [&["role", "maya", "viewer"], &["password", "maya"], &["rm", "maya"]];
    let mut password = PASSWORD;
    for change in changes {
        assert!(maya.log_in(&named("maya", password)).await && maya.is_in().await);
        let changed = type_in(&world, "another horse battery\n", None, &[&["users"], change].concat()).await;
        assert_eq!(changed.code, 0, "{change:?}: {}", changed.err);
        assert!(!maya.is_in().await, "{change:?}");
        password = if change[0] == "role" { PASSWORD } else { "another horse battery" };
    }
    assert!(!maya.log_in(&named("maya", password)).await);
    let rows = ask(&world, &["audit", "ls", "--actor", "maya", "--json"]).await.json();
    let told: Vec<&Value> = rows["audit"].as_array().unwrap().iter().map(|row| &row["action"]).collect();
    assert_eq!(told, vec!["me.log_in"; 5]);
    let everything = format!("{rows}{}", ask(&world, &["audit", "ls", "--json"]).await.out);
    assert!(!everything.contains("horse") && !everything.contains("argon2"), "{everything}");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_password_logs_in_as_it_was_set_also_with_spaces_around_it() {
    let world = World::new(&[]).await;
    let password = " correct horse battery ";
    let typed = format!("{password}\n");
    let added = type_in(&world, &typed, None, &["users", "add", "maya", "--role", "viewer", "--password"]).await;
    assert_eq!(added.code, 0, "{}", added.err);
    let mut maya = browser(&world);
    assert!(!maya.log_in(&named("maya", password.trim())).await);
    assert!(maya.log_in(&named("maya", password)).await && maya.is_in().await);
    // A token has none, and is pasted.
    let token = std::fs::read_to_string(world.data_dir().join("admin.token")).unwrap();
    assert!(browser(&world).log_in(&named("admin", &format!(" {} ", token.trim()))).await);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_link_logs_in_once_with_what_its_maker_came_with() {
    let world = World::new(&[]).await;
    let open = async |said: crate::cli::Said| {
        assert_eq!(said.code, 0, "{}", said.err);
        let url: url::Url = said.out.trim().parse().unwrap();
        assert_eq!(url.path(), "/login");
        url.query_pairs().find(|(name, _)| name == "code").unwrap().1.into_owned()
    };
    let code = open(ask(&world, &["open"]).await).await;
    let mut admin = browser(&world);
    let page = admin.get(&format!("/login?code={code}")).await;
    assert!(
        page.status == 200 && page.body.contains(&code),
        "a button is shown, and looking uses nothing up: {page:?}"
    );
    assert!(admin.log_in(&[("code", &code)]).await && admin.is_in().await);
    assert!(!browser(&world).log_in(&[("code", &code)]).await, "once");
    assert!(!browser(&world).log_in(&[("code", "made-up")]).await);

    add(&world, "maya", "operator").await;
    let viewer = ask(&world, &["users", "token", "maya", "--role", "viewer"]).await.out.trim().to_string();
    let mut maya = browser(&world);
    let code = open(as_user(&world, &viewer, &["open"]).await).await;
    assert!(maya.log_in(&[("code", &code)]).await && maya.is_in().await);
    let page = maya.get("/safe-mode").await.body;
    let csrf = page.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_string();
    let refused = maya.post("/safe-mode/on", &[("csrf", &csrf), ("reason", "no")]).await;
    assert_eq!(refused.status, 403, "a viewer's token gives a viewer's log-in: {refused:?}");
    let unused = open(as_user(&world, &viewer, &["open"]).await).await;
    assert_eq!(ask(&world, &["users", "rm", "maya"]).await.code, 0);
    assert!(!maya.is_in().await && !browser(&world).log_in(&[("code", &unused)]).await);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_who_guesses_waits_and_nobody_hears_which_names_there_are() {
    let world = World::new(&[]).await;
    for name in ["maya", "ben"] {
        let typed = format!("{PASSWORD}\n");
        let added = type_in(&world, &typed, None, &["users", "add", name, "--role", "viewer", "--password"]).await;
        assert_eq!(added.code, 0, "{}", added.err);
    }
    let mut stranger = browser(&world);
    let (known, unknown) = (
        stranger.post("/login", &named("maya", "a wrong password")).await,
        stranger.post("/login", &named("nobody", "a wrong password")).await,
    );
    assert_eq!((known.status, &known.body), (unknown.status, &unknown.body));
    // More than may be tried at once: one more may be tried after each minute.
    for _ in 0..12 {
        assert!(!stranger.log_in(&named("maya", "a wrong password")).await);
    }
    assert!(!stranger.log_in(&named("maya", PASSWORD)).await, "ten were wrong; the right one waits, too");
    assert!(stranger.log_in(&named("ben", PASSWORD)).await, "others do not");
    for _ in 0..25 {
        stranger.post("/login", &[("code", "made-up")]).await;
    }
    assert!(!stranger.log_in(&named("ben", PASSWORD)).await, "an address waits, too");
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k1_a_user_changes_his_own_password_and_needs_the_present_one() {
    let world = World::new(&[]).await;
    let typed = format!("{PASSWORD}\n");
    type_in(&world, &typed, None, &["users", "add", "maya", "--role", "viewer", "--password"]).await;
    let token = ask(&world, &["users", "token", "maya"]).await.out.trim().to_string();
    let change = async |present: &str, new: &str| {
        let body = json!({"present": present, "new": new}).to_string();
        request(&world, &Method::POST, "/api/v1/me/password", Some(&token), &body).await
    };
    change("a wrong password", "another horse battery").await.check_problem(403, "not-allowed");
    change(PASSWORD, "short").await.check_problem(400, "bad-body");
    assert_eq!(change(PASSWORD, "another horse battery").await.status, 200);
    let mut maya = browser(&world);
    assert!(!maya.log_in(&named("maya", PASSWORD)).await);
    assert!(maya.log_in(&named("maya", "another horse battery")).await);
    let admin = world.command("/api/v1/me/password", json!({"present": "", "new": PASSWORD})).await;
    admin.check_problem(409, "not-now");
    let rows = ask(&world, &["audit", "ls", "--action", "me.password", "--json"]).await.json();
    assert_eq!(rows["audit"][0]["actor"], "maya");
    world.close_and_verify().await;
}
