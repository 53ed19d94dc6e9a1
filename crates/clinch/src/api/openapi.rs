//! The API, described for machines: OpenAPI 3.1, made from the shapes that are really sent. A route that is not described here
//! fails a test.

use super::about::About;
use super::alerts::{
    AlertHistory, AlertList, ChannelTested, RuleList, SilenceAsk, SilenceSet, UnsilenceAsk, Unsilenced,
};
use super::approvals::{ApprovalList, ApprovalShow, BulkAsk, BulkVoted, VoteAsk, Voted};
use super::config::{ApplyAsk, ConfigApplied, ConfigDiff, ConfigShow, DiffAsk, RollbackAsk};
use super::controls::{PauseAsk, PauseList, PauseSet, ResumeAsk, Resumed};
use super::dead::DeadShapes;
use super::drops::{DropList, DropsAsk, DropsDone};
use super::dry_run::{DryRun, DryRunAsk};
use super::flows::{FlowDiff, FlowList, FlowShow};
use super::integrations::{IntegrationList, IntegrationShow};
use super::me::{LoginLink, MeShow, OwnPasswordAsk, PasswordSet};
use super::overview::WINDOWS;
use super::problem::Told;
use super::query::Query;
use super::replays::{PlanAsk, PlanJobs, PlanList, PlanShow, PlanStart, PlanTurn};
use super::runbooks::{RunbookList, RunbookShow};
use super::safe_mode::{SafeModeOff, SafeModeOn, SafeModeSet, SafeModeShow};
use super::settings::{SettingAsk, SettingList, SettingRollback, SettingSet, SettingShow, SettingUnset};
use super::shapes::*;
use super::stream::Happened;
use super::users::{PasswordAsk, RoleAsk, RoleSet, UserTokenAsk, UserTokenList, UserTokenRemoved, UserTokenTold};
use super::{Route, problem::Problem};
use axum::Json;
use axum::extract::RawQuery;
use clinch_core::approval::Verdict;
use clinch_core::death::Reason;
use clinch_core::effect::EffectWord;
use clinch_core::job::Word;
use clinch_core::key::KEY_BYTES_MAX;
use clinch_core::replay::ItemState;
use clinch_core::search::TEXT_BYTES_MAX;
use clinch_store::read::{LATENCY_JOBS_MAX, LIST_ROWS_MAX};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, SchemaFormat, Type};

pub async fn show(RawQuery(raw): RawQuery) -> Result<Json<Value>, Problem> {
    Query::parse(raw.as_deref(), &[])?;
    Ok(Json(document()))
}

impl utoipa::PartialSchema for Moment {
    fn schema() -> RefOr<Schema> {
        let moment = ObjectBuilder::new().schema_type(Type::String);
        let moment = moment.format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
        moment.description(Some("A moment in UTC.")).build().into()
    }
}

impl ToSchema for Moment {}

/// What a parameter is written as.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Bool,
    Job,
    Event,
    Plan,
    /// How long ago, or when.
    Moment,
    DateTime,
    Number {
        most: u64,
    },
    Words(fn() -> Vec<&'static str>),
    TextUpTo(usize),
}

impl Kind {
    fn schema(self) -> Value {
        // Crockford's alphabet, and no more than 64 bits.
        let id =
            |prefix: &str| json!({"type": "string", "pattern": format!("^{prefix}_[0-9A-F][0-9A-HJKMNP-TV-Z]{{12}}$")});
        match self {
            Kind::Text => json!({"type": "string", "minLength": 1}),
            Kind::TextUpTo(most) => json!({"type": "string", "minLength": 1, "maxLength": most}),
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Job => id("job"),
            Kind::Event => id("evt"),
            Kind::Plan => id("rpl"),
            Kind::Moment => json!({"type": "string", "examples": ["2h", "2026-08-01T00:00:00Z"]}),
            Kind::DateTime => json!({"type": "string", "format": "date-time"}),
            Kind::Number { most } => json!({"type": "integer", "minimum": 1, "maximum": most}),
            Kind::Words(words) => json!({"type": "string", "enum": words()}),
        }
    }
}

/// Something that can be asked beside the path.
#[derive(Clone, Copy)]
struct Param {
    name: &'static str,
    kind: Kind,
    about: &'static str,
    required: bool,
}

const fn may(name: &'static str, kind: Kind, about: &'static str) -> Param {
    Param { name, kind, about, required: false }
}

const fn must(name: &'static str, kind: Kind, about: &'static str) -> Param {
    Param { name, kind, about, required: true }
}

const Q: Param =
    may("q", Kind::TextUpTo(TEXT_BYTES_MAX), "Words that all must fit, such as `flow:orders state:dead age>5m`.");
const FLOW: Param = may("flow", Kind::Text, "Of this flow.");
const QUEUE: Param = may("queue", Kind::Text, "Of this queue.");
const STEP: Param = may("step", Kind::Text, "Of this step.");
const STATE: Param = may("state", Kind::Words(states), "In this state.");
const REASON: Param = may("reason", Kind::Words(reasons), "With this reason.");
const COUNT: Param = may("count", Kind::Bool, "Whether all that fits is counted, as far as the list looks.");
const LIMIT: Param = may("limit", Kind::Number { most: LIST_ROWS_MAX as u64 }, "At most so many.");
const BEFORE: Param = may("before", Kind::Job, "Only older ones: what `next_before` said.");
const OF_JOB: Param = may("job", Kind::Job, "Of this job.");
const SINCE: Param = may("since", Kind::Moment, "Since then: how long ago, or when.");
const UNTIL: Param = may("until", Kind::Moment, "Before then: how long ago, or when.");
const TENANT: Param = may("tenant", Kind::Text, "Where tenants are told apart.");

fn states() -> Vec<&'static str> {
    Word::ALL.into_iter().map(Word::as_str).collect()
}

fn windows() -> Vec<&'static str> {
    WINDOWS.map(|(name, ..)| name).to_vec()
}

fn reasons() -> Vec<&'static str> {
    Reason::ALL.iter().map(|reason| reason.word()).collect()
}

fn effect_states() -> Vec<&'static str> {
    EffectWord::ALL.into_iter().map(EffectWord::as_str).collect()
}

fn approval_states() -> Vec<&'static str> {
    ["pending"].into_iter().chain(Verdict::ALL.into_iter().map(Verdict::word)).collect()
}

fn item_states() -> Vec<&'static str> {
    ItemState::ALL.iter().map(|state| state.as_str()).collect()
}

/// The document, as it grows.
#[derive(Default)]
struct Book {
    paths: BTreeMap<&'static str, Map<String, Value>>,
    schemas: BTreeMap<String, Value>,
}

impl Book {
    /// Where this shape is described.
    fn shape<T: ToSchema>(&mut self) -> Value {
        let mut found = Vec::new();
        T::schemas(&mut found);
        found.push((T::name().into_owned(), T::schema()));
        for (name, schema) in found {
            let schema = serde_json::to_value(schema).expect("a schema is JSON");
            self.schemas.insert(name, schema);
        }
        json!({"$ref": format!("#/components/schemas/{}", T::name())})
    }

    fn get<A: ToSchema>(&mut self, path: &'static str, summary: &str, asks: &[Param]) {
        let answer = self.shape::<A>();
        self.add("get", path, summary, asks, None, answer);
    }

    /// What is answered there is a stream of events, whose data are of the shape that was said.
    fn stream(&mut self, path: &'static str) {
        if let Some(operation) = self.paths.get_mut(path).and_then(|item| item.get_mut("get")) {
            let schema = operation["responses"]["200"]["content"]["application/json"].take();
            operation["responses"]["200"]["content"] = json!({"text/event-stream": schema});
        }
    }

    fn post<B: ToSchema, A: ToSchema>(&mut self, path: &'static str, summary: &str) {
        self.command::<B, A>("post", path, summary);
    }

    fn command<B: ToSchema, A: ToSchema>(&mut self, method: &str, path: &'static str, summary: &str) {
        let (body, answer) = (self.shape::<B>(), self.shape::<A>());
        self.add(method, path, summary, &[], Some(body), answer);
    }

    fn add(
        &mut self,
        method: &str,
        path: &'static str,
        summary: &str,
        asks: &[Param],
        body: Option<Value>,
        answer: Value,
    ) {
        let mut parameters: Vec<Value> = places(path);
        parameters.extend(asks.iter().map(|Param { name, kind, about, required }| {
            json!({"name": name, "in": "query", "required": required, "description": about, "schema": kind.schema()})
        }));
        if method != "get" {
            parameters.push(json!({
                "name": "Idempotency-Key",
                "in": "header",
                "required": false,
                "description": "Under one key a command is carried out once; its answer is given again for 24 hours.",
                "schema": {"type": "string", "pattern": format!("^[A-Za-z0-9_-]{{1,{KEY_BYTES_MAX}}}$")},
            }));
        }
        let mut operation = json!({
            "operationId": operation_id(method, path),
            "summary": summary,
            "parameters": parameters,
            "responses": {
                "200": {"description": "It was done.", "content": {"application/json": {"schema": answer}}},
                "default": {"$ref": "#/components/responses/Problem"},
            },
        });
        if let Some(body) = body {
            operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": body}}});
        }
        self.paths.entry(path).or_default().insert(method.into(), operation);
    }
}

/// What is named in the path.
fn places(path: &str) -> Vec<Value> {
    let named = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let kind = |name: &str| match name {
        "job" => Kind::Job,
        "id" if path.contains("/jobs/") => Kind::Job,
        "id" if path.contains("/events/") => Kind::Event,
        "id" if path.contains("/replays/") => Kind::Plan,
        _ => Kind::Text,
    };
    named.map(|name| json!({"name": name, "in": "path", "required": true, "schema": kind(name).schema()})).collect()
}

fn operation_id(method: &str, path: &str) -> String {
    let parts = path.trim_start_matches("/api/v1").split(['/', '{', '}', '.', '-']).filter(|part| !part.is_empty());
    [method].into_iter().chain(parts).collect::<Vec<_>>().join("_")
}

/// The whole document.
pub fn document() -> Value {
    let mut book = Book::default();
    describe(&mut book);
    for Route { method, path, permission, .. } in super::all() {
        if let Some(operation) = book.paths.get_mut(path).and_then(|item| item.get_mut(&method.as_str().to_lowercase()))
        {
            operation["description"] = json!(format!("Needs a role that allows `{permission}`."));
        }
    }
    let problem = book.shape::<Told>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "clinch",
            "summary": "What console and command line ask.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": env!("CARGO_PKG_LICENSE")},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": book.paths,
        "components": {
            "schemas": book.schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": {
                "description": "Why it was not done, and what to do (RFC 9457).",
                "content": {"application/problem+json": {"schema": problem}},
            }},
        },
    })
}

fn describe(book: &mut Book) {
    jobs(book);
    dead(book);
    effects(book);
    house(book);
    controls(book);
    people(book);
    alerts(book);
    let document = json!({"type": "object"});
    book.add("get", "/api/v1/openapi.json", "This document", &[], None, document);
}

fn jobs(book: &mut Book) {
    let window = may("window", Kind::Words(windows), "What was counted in such a time, on the node that answers.");
    book.get::<Overview>("/api/v1/overview", "What needs a person, and how much there is to do", &[window]);
    book.get::<IntegrationList>("/api/v1/integrations", "Whom it calls, and how that goes", &[window]);
    book.get::<IntegrationShow>("/api/v1/integrations/{name}", "One of those it calls", &[window]);
    book.get::<FlowList>("/api/v1/flows", "What runs, and the versions of the workspace", &[]);
    let version = may("version", Kind::Text, "As it was in this one, such as `v42`.");
    book.get::<FlowShow>("/api/v1/flows/{name}", "Steps, files and versions of a flow", &[version]);
    let versions = [must("from", Kind::Text, "Such as `v41`."), must("to", Kind::Text, "Such as `v42`.")];
    book.get::<FlowDiff>("/api/v1/flows/{name}/diff", "What is different between two versions", &versions);
    book.get::<ConfigShow>("/api/v1/config", "Which workspace is live, who made it so and why", &[]);
    book.post::<DryRunAsk, DryRun>(
        "/api/v1/config/dry-run",
        "What would be done for events, compared with another workspace",
    );
    book.post::<ApplyAsk, ConfigApplied>("/api/v1/config/apply", "Make files live");
    book.post::<RollbackAsk, ConfigApplied>("/api/v1/config/rollback", "Make an older version live again");
    book.post::<DiffAsk, ConfigDiff>("/api/v1/config/diff", "What a change of the workspace means, and its lines");
    book.get::<About>("/api/v1/about", "What this installation is", &[]);
    let only = may("only", Kind::Text, "Only these, such as `rejected,dead`.");
    let source = may("source", Kind::Text, "What comes in there.");
    let path = "/api/v1/stream";
    book.get::<Happened>(path, "What happens on this node, as it happens", &[only, source, FLOW]);
    book.stream(path);
    let text = must(
        "q",
        Kind::TextUpTo(TEXT_BYTES_MAX),
        "An id, a key, a trace, an address; or words such as `flow:orders state:dead`.",
    );
    book.get::<Found>("/api/v1/search", "What a text names, or the jobs that its words fit", &[text, BEFORE, LIMIT]);
    let list = &[Q, STATE, FLOW, QUEUE, REASON, COUNT, BEFORE, LIMIT];
    book.get::<JobList>("/api/v1/jobs", "Jobs, the newest first", list);
    book.get::<JobShow>("/api/v1/jobs/{id}", "Everything about one job", &[]);
    book.post::<ReplayAsk, Replayed>("/api/v1/jobs/{id}/replay", "Run a dead letter again");
    let events = &[
        may("source", Kind::Text, "What this source, or this flow's own route, took in."),
        may("again", Kind::Words(|| vec!["duplicate", "conflict"]), "Only those that came again."),
        SINCE,
        UNTIL,
        may("before", Kind::Event, "Only older ones: what `next_before` said."),
        LIMIT,
    ];
    book.get::<EventList>("/api/v1/events", "Events, the newest first", events);
    book.get::<JobList>("/api/v1/events/{id}", "The jobs of an event", &[]);
    let key = must("key", Kind::TextUpTo(KEY_BYTES_MAX), "The key to look for.");
    book.get::<KeyShow>("/api/v1/keys", "The history of an idempotency key", &[key, FLOW, TENANT]);
    let latency = &[
        may("window", Kind::Text, "Jobs that were accepted in the last so long; 15m if not given."),
        may("percentile", Kind::Text, "Up to ten numbers, such as `95,99.9`."),
        may("most", Kind::Number { most: LATENCY_JOBS_MAX as u64 }, "Only the newest so many."),
    ];
    book.get::<Latency>("/api/v1/latency", "How long jobs take", latency);
}

fn dead(book: &mut Book) {
    book.get::<JobList>(
        "/api/v1/dead",
        "Dead letters, the newest first",
        &[Q, FLOW, QUEUE, REASON, COUNT, BEFORE, LIMIT],
    );
    book.get::<DeadGroups>("/api/v1/dead/groups", "Dead letters by flow and reason", &[]);
    let group = &[FLOW, REASON];
    book.get::<DeadShapes>("/api/v1/dead/shapes", "What the messages of dead letters have in common", group);
    book.get::<DropList>("/api/v1/dead/drops", "Dead letters that somebody wants to give up", &[LIMIT]);
    book.post::<DropsAsk, DropsDone>("/api/v1/dead/drop", "Ask for dead letters to be given up");
    book.post::<DropsAsk, DropsDone>("/api/v1/dead/drop/confirm", "Give up what somebody else asked for");
    book.post::<DropsAsk, DropsDone>("/api/v1/dead/undrop", "Take back what was dropped, or asked for");
    book.get::<PlanList>("/api/v1/replays", "Replay plans, the newest first", &[LIMIT]);
    book.post::<PlanAsk, PlanShow>("/api/v1/replays", "Count a set of dead letters and freeze it");
    book.get::<PlanShow>("/api/v1/replays/{id}", "A plan, and how far it has come", &[]);
    let items = &[
        may("state", Kind::Words(item_states), "In this state."),
        may(
            "after",
            Kind::Number { most: u64::from(u32::MAX) },
            "Where the page before ended: what `next_after` said.",
        ),
        LIMIT,
    ];
    book.get::<PlanJobs>("/api/v1/replays/{id}/jobs", "The jobs of a plan, in their order", items);
    book.post::<PlanStart, PlanShow>("/api/v1/replays/{id}/start", "Start a plan, once");
    book.post::<PlanTurn, PlanShow>("/api/v1/replays/{id}/pause", "Pause a plan");
    book.post::<PlanTurn, PlanShow>("/api/v1/replays/{id}/resume", "Let a plan go on");
    book.post::<PlanTurn, PlanShow>("/api/v1/replays/{id}/stop", "Stop a plan for good");
}

fn effects(book: &mut Book) {
    let list = &[
        may("state", Kind::Words(effect_states), "In this state."),
        may("integration", Kind::Text, "With this partner."),
        FLOW,
        OF_JOB,
        may("before", Kind::Text, "Only those after it in the list: what `next_before` said."),
        LIMIT,
    ];
    book.get::<EffectList>("/api/v1/effects", "Effects, those of the newest jobs first", list);
    book.get::<EffectShow>("/api/v1/effects/{job}/{step}", "Everything about one effect", &[]);
    let verified = book.shape::<EffectVerified>();
    let verify = "Ask the partner whether an effect was done";
    book.add("post", "/api/v1/effects/{job}/{step}/verify", verify, &[], None, verified);
    book.post::<ResolveAsk, EffectResolved>(
        "/api/v1/effects/{job}/{step}/resolve",
        "A person's word on an effect of unknown outcome",
    );
    let list = &[
        may("state", Kind::Words(approval_states), "In this state."),
        FLOW,
        STEP,
        OF_JOB,
        may("before", Kind::Text, "Only those after it in the list: what `next_before` said."),
        LIMIT,
    ];
    book.get::<ApprovalList>("/api/v1/approvals", "What waits for people, and what they decided", list);
    book.post::<BulkAsk, BulkVoted>("/api/v1/approvals/decide", "Vote on many");
    book.get::<ApprovalShow>("/api/v1/approvals/{job}/{step}", "One approval, with its votes", &[]);
    book.post::<VoteAsk, Voted>("/api/v1/approvals/{job}/{step}/decide", "Vote on one");
}

fn house(book: &mut Book) {
    book.get::<KeysList>("/api/v1/encryption", "What the store is encrypted with", &[]);
    let rotating = book.shape::<ChoreShow>();
    let rotate = "Begin to seal everything with a new key";
    book.add("post", "/api/v1/encryption/rotate", rotate, &[], None, rotating);
    book.post::<ForgetAsk, ChoreShow>("/api/v1/forget", "Begin to erase what is kept of somebody");
    book.get::<ChoreShow>("/api/v1/chore", "How far the last long work has come", &[]);
    let audit = &[
        may("actor", Kind::Text, "What this person did."),
        may("action", Kind::Text, "A word, or all of a family: `job.*`."),
        may("object", Kind::Text, "What was done to this."),
        may("since", Kind::DateTime, "Since then."),
        may("until", Kind::DateTime, "Before then."),
        may("before", Kind::Number { most: i64::MAX as u64 }, "Only older rows."),
        may("after", Kind::Number { most: i64::MAX as u64 }, "Only younger rows, the oldest first."),
        LIMIT,
    ];
    book.get::<AuditList>("/api/v1/audit", "Who did what, from where and why", audit);
    let head = may("head", Kind::Text, "A hash of it that was kept elsewhere.");
    book.get::<AuditVerified>("/api/v1/audit/verify", "Whether the record is whole", &[head]);
    book.get::<SourceList>("/api/v1/sources", "Who may send, and how that is proven", &[]);
    book.get::<RejectionList>("/api/v1/sources/{name}/rejections", "What a source refused lately", &[]);
    let budgets = &[
        may("budget", Kind::Text, "Of this budget."),
        may("exhausted", Kind::Bool, "Only those that have nothing left."),
        LIMIT,
    ];
    book.get::<BudgetList>("/api/v1/budgets", "What entities have used of their retry budgets", budgets);
    let entity = must("entity", Kind::Text, "Whose budget it is.");
    book.get::<BudgetShow>("/api/v1/budgets/{name}", "What one entity has used", &[entity, TENANT]);
    book.post::<BudgetGrant, BudgetShow>("/api/v1/budgets/{name}/grant", "Give an entity more for its present window");
    book.get::<ScheduleList>("/api/v1/schedules", "Workers that run by themselves", &[]);
    book.post::<ScheduleRunAsk, ScheduleRun>("/api/v1/schedules/{name}/run", "A run now");
}

fn controls(book: &mut Book) {
    book.get::<PauseList>("/api/v1/pauses", "What is paused", &[]);
    book.post::<PauseAsk, PauseSet>("/api/v1/pauses", "Pause something");
    book.post::<ResumeAsk, Resumed>("/api/v1/pauses/{scope}/resume", "Let it go on");
    book.get::<SafeModeShow>("/api/v1/safe-mode", "Where safe mode is on, and what it holds", &[]);
    book.post::<SafeModeOn, SafeModeSet>("/api/v1/safe-mode", "Hold what cannot be taken back");
    book.post::<SafeModeOff, SafeModeSet>("/api/v1/safe-mode/off", "Let it go again");
    book.get::<SettingList>("/api/v1/settings", "What can be set over the files, and what is", &[]);
    book.get::<SettingShow>("/api/v1/settings/{name}", "One setting, with its history", &[]);
    book.command::<SettingAsk, SettingSet>("put", "/api/v1/settings/{name}", "Set it");
    book.command::<SettingUnset, SettingSet>("delete", "/api/v1/settings/{name}", "Let the file count again");
    book.post::<SettingRollback, SettingSet>("/api/v1/settings/{name}/rollback", "Go back to an earlier version of it");
}

fn alerts(book: &mut Book) {
    book.get::<AlertList>("/api/v1/alerts", "What fires, what is silenced, and who is told", &[]);
    book.get::<AlertHistory>("/api/v1/alerts/history", "Alerts, the newest first", &[LIMIT]);
    book.get::<RuleList>("/api/v1/alerts/rules", "What is judged, and how much is too much", &[]);
    book.post::<SilenceAsk, SilenceSet>("/api/v1/alerts/silences", "Tell nobody that an alert fires, for a while");
    book.post::<UnsilenceAsk, Unsilenced>("/api/v1/alerts/silences/{name}/end", "Tell people again");
    let tested = book.shape::<ChannelTested>();
    book.add("post", "/api/v1/alerts/channels/{name}/test", "Send a test over a channel", &[], None, tested);
    book.get::<RunbookList>("/api/v1/runbooks", "Pages that say what to do", &[]);
    book.get::<RunbookShow>("/api/v1/runbooks/{name}", "One of them", &[]);
}

fn people(book: &mut Book) {
    book.get::<TokenList>("/api/v1/tokens", "Tokens of senders", &[]);
    book.post::<TokenAsk, TokenMade>("/api/v1/tokens", "Make a sender's token");
    book.post::<RevokeAsk, TokenRevoked>("/api/v1/tokens/{id}/revoke", "End a sender's token");
    book.get::<UserList>("/api/v1/users", "Users, by name", &[]);
    book.post::<UserAsk, UserMade>("/api/v1/users", "Add a user");
    book.post::<RevokeAsk, UserRemoved>("/api/v1/users/{name}/remove", "Remove a user, with all tokens and sessions");
    book.post::<RoleAsk, RoleSet>("/api/v1/users/{name}/role", "Give a user another role");
    book.post::<PasswordAsk, PasswordSet>("/api/v1/users/{name}/password", "Give a user another password");
    book.get::<UserTokenList>("/api/v1/users/{name}/tokens", "The tokens of a user", &[]);
    book.post::<UserTokenAsk, UserTokenTold>("/api/v1/users/{name}/tokens", "Make another token for a user");
    book.post::<RevokeAsk, UserTokenRemoved>("/api/v1/users/{name}/tokens/{id}/remove", "Take a token away");
    book.get::<MeShow>("/api/v1/me", "Who asks, and what the role allows", &[]);
    book.post::<OwnPasswordAsk, PasswordSet>("/api/v1/me/password", "Change one's own password");
    let link = book.shape::<LoginLink>();
    book.add("post", "/api/v1/login-links", "A link that logs in to the console, once", &[], None, link);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn i1_every_route_is_described_and_nothing_else() {
        let routes: BTreeSet<String> =
            crate::api::all().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
        let document = document();
        let mut described = BTreeSet::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            for method in item.as_object().expect("operations").keys() {
                described.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        assert_eq!(described, routes);
    }

    #[test]
    fn i1_every_reference_of_the_document_leads_somewhere() {
        fn check(document: &Value, part: &Value) {
            match part {
                Value::Object(fields) => {
                    if let Some(Value::String(to)) = fields.get("$ref") {
                        assert!(document.pointer(to.trim_start_matches('#')).is_some(), "{to}");
                    }
                    fields.values().for_each(|field| check(document, field));
                }
                Value::Array(items) => items.iter().for_each(|item| check(document, item)),
                _ => {}
            }
        }
        let document = document();
        check(&document, &document);
        assert_eq!(document["openapi"], "3.1.0");
    }

    #[test]
    fn i1_no_two_operations_have_one_name() {
        let document = document();
        let items = document["paths"].as_object().expect("paths").values();
        let ids: Vec<String> = items
            .flat_map(|item| item.as_object().expect("operations").values())
            .map(|operation| operation["operationId"].to_string())
            .collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    }
}
