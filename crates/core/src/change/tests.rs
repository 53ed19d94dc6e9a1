//! Each change of a workspace in its own words. What is said here is what people read before they apply something.

use super::*;
use crate::config::load;

const SETTINGS: &str = "\
masking:
  fields: [crm_id, nickname]
sources:
  shop:
    verify: shopify
    secret: ${secrets.SHOP_A}
integrations:
  crm:
    base_url: https://crm.example.com
    rate: 10/s
    concurrency: 4
    idempotency: header
    honoured_for: 24h
    channel: email
";
const QUEUES: &str = "\
queues:
  - name: orders
    fifo: true
    group_from: body:/customer
  - name: orders-dlq
    retention: 30d
  - name: news
";
const POLICIES: &str = "\
policies:
  marketing:
    channels: [email]
    contact: \"{{ body.email }}\"
    consent: \"body.agreed\"
    frequency:
      - {max: 3, per: day}
";
const INTAKE: &str = "\
version: 1
name: intake
triggers:
  - http:
      path: /orders
      verify: none
      idempotency:
        key_from: header:Idempotency-Key
        ttl: 48h
steps:
  - name: enqueue
    queue: {name: orders}
";
const NEWS: &str = "\
version: 1
name: news
triggers:
  - source: shop
steps:
  - name: enqueue
    queue: {name: news}
";
const CHARGE: &str = "\
version: 1
name: charge
consumes: {queue: orders}
retry:
  max_attempts: 8
  max_delay: 10m
  on_exhausted: dlq:orders-dlq
  budget: {per: \"{{ body.customer }}\", max: 10}
run:
  - name: charge
    http: {integration: crm, url: /charges, body_from: body}
  - name: tell
    http: {integration: crm, url: /told, body_from: body}
";
const WRITE: &str = "\
version: 1
name: write
consumes: {queue: news}
run:
  - name: review
    if: \"body.readers > 100\"
    approval: {title: send it, need: 2}
  - name: mail
    http: {integration: crm, url: /mail, body_from: body}
";

fn good() -> Files {
    let files = [
        ("clinch.yml", SETTINGS),
        ("flows/intake.yml", INTAKE),
        ("flows/news.yml", NEWS),
        ("policies.yml", POLICIES),
        ("queues.yml", QUEUES),
        ("workers/charge.yml", CHARGE),
        ("workers/write.yml", WRITE),
    ];
    Files(files.map(|(path, text)| (path.to_string(), text.to_string())).into())
}

fn loaded(files: &Files) -> Workspace {
    let told = |problems: Vec<crate::config::Problem>| -> Vec<String> {
        problems.iter().map(|problem| format!("{}: {}", problem.file, problem.message)).collect()
    };
    load(files).map(|(workspace, _)| workspace).map_err(told).expect("a workspace")
}

/// In `file`, `from` becomes `to`; an empty file is no file.
fn changed(edits: &[(&str, &str, &str)]) -> Files {
    let mut files = good();
    for (file, from, to) in edits {
        let (_, text) = files.0.iter_mut().find(|(path, _)| path == file).expect("a file of the workspace");
        assert!(text.contains(from), "{file} does not say {from}");
        *text = text.replacen(from, to, 1);
    }
    files.0.retain(|(_, text)| !text.is_empty());
    files
}

fn in_flight() -> InFlight {
    InFlight(BTreeMap::from([
        ("intake".to_string(), Jobs { unfinished: 37, dead: 4 }),
        ("news".to_string(), Jobs { unfinished: 1, dead: 0 }),
    ]))
}

fn told(old: &Files, new: &Files) -> Vec<String> {
    let (before, after) = (loaded(old), loaded(new));
    let changes =
        changes(Side { files: old, workspace: &before }, Side { files: new, workspace: &after }, &in_flight());
    let one = |change: &Change| {
        let place = |place: &Option<Place>| place.as_ref().map_or("-".to_string(), Place::to_string);
        let from_to = match (&change.was, &change.now) {
            (None, None) => String::new(),
            (was, now) => format!(" [{} -> {}]", was.as_deref().unwrap_or("-"), now.as_deref().unwrap_or("-")),
        };
        let fix = change.fix.as_ref().map_or_else(String::new, |fix| format!(" | {fix}"));
        format!(
            "{} {} {} {}{from_to} @{} was {}: {}{fix}",
            change.kind.code(),
            change.weight.word(),
            change.subject,
            change.what,
            place(&change.at),
            place(&change.was_at),
            change.sentence
        )
    };
    changes.iter().map(one).collect()
}

fn check(edits: &[(&str, &str, &str)], expected: &[&str]) {
    assert_eq!(told(&good(), &changed(edits)), expected);
}

#[test]
fn j2_the_same_files_are_no_change() {
    check(&[], &[]);
    check(&[("queues.yml", "queues:", "# ours\nqueues:")], &[]);
}

#[test]
fn j2_a_shorter_memory_of_keys_names_what_is_done_again() {
    check(
        &[("flows/intake.yml", "ttl: 48h", "ttl: 2h")],
        &[
            "CL0201 risk flow intake triggers.0.http.idempotency.ttl [2d -> 2h] @flows/intake.yml:9 was flows/intake.yml:9: keys are forgotten after 2h instead of 2d: a delivery that is repeated later than that is done again. | keep `ttl: 2d`, or make sure that the sender gives up within 2h",
        ],
    );
}

#[test]
fn j2_another_key_lets_what_was_seen_pass_once_more() {
    check(
        &[("flows/intake.yml", "header:Idempotency-Key", "body:/id")],
        &[
            "CL0202 risk flow intake triggers.0.http.idempotency.key_from [`header:idempotency-key` -> `body:/id`] @flows/intake.yml:8 was flows/intake.yml:8: deliveries are recognised by `body:/id` instead of `header:idempotency-key`: one that was seen under its old key passes once more, as a new one. 37 jobs in flight were accepted under the old one. | change it when the sender has nothing left to send again, or keep the old one",
        ],
    );
}

#[test]
fn j2_fewer_attempts_make_dead_letters() {
    check(
        &[("workers/charge.yml", "max_attempts: 8", "max_attempts: 3")],
        &[
            "CL0204 risk worker charge retry.max_attempts [8 -> 3] @workers/charge.yml:5 was workers/charge.yml:5: a job that keeps failing is given up after 3 attempts instead of 8, within 3m6s instead of 12m14s: an outage that is longer makes dead letters. | keep `max_attempts: 8`, or lengthen `max_delay` so that the attempts reach as far",
        ],
    );
}

#[test]
fn j2_retries_beyond_the_memory_of_a_partner_could_do_it_twice() {
    check(
        &[
            ("workers/charge.yml", "max_attempts: 8\n  max_delay: 10m", "max_attempts: 60\n  max_delay: 1h"),
            ("flows/intake.yml", "ttl: 48h", "ttl: 90d"),
        ],
        &[
            "CL0205 risk worker charge retry.max_attempts [8 attempts, 12m14s -> 60 attempts, 2d2h] @workers/charge.yml:5 was workers/charge.yml:5: a job that keeps failing is retried for 2d2h instead of 12m14s: `crm` honours our key for 1d only, and a retry of `charge` after that could do it twice. | let the job give up sooner (`max_elapsed`), or ask the partner for how long it knows a key",
            "CL0200 note worker charge retry.max_delay [10m -> 1h] @workers/charge.yml:6 was workers/charge.yml:6: `retry.max_delay` is written differently.",
            "CL0200 note flow intake triggers.0.http.idempotency.ttl [48h -> 90d] @flows/intake.yml:9 was flows/intake.yml:9: `triggers.0.http.idempotency.ttl` is written differently.",
        ],
    );
}

#[test]
fn j2_an_integration_that_is_gone_is_still_called_by_jobs_in_flight() {
    check(
        &[
            ("clinch.yml", "  crm:\n", "  crm2:\n"),
            ("workers/charge.yml", "integration: crm, url: /charges", "integration: crm2, url: /charges"),
            ("workers/charge.yml", "integration: crm, url: /told", "integration: crm2, url: /told"),
            ("workers/write.yml", "integration: crm", "integration: crm2"),
        ],
        &[
            "CL0206 risk integration crm integrations.crm @clinch.yml:9 was clinch.yml:9: integration `crm` is gone, but 38 jobs in flight and 4 dead letters still call it, as the version of then says: without its secrets that fails. | leave its secrets where they are until those are done: `clinch jobs ls` shows who is left",
            "CL0206 risk worker charge run.charge [crm -> crm2] @workers/charge.yml:10 was workers/charge.yml:10: `charge` calls `crm2` instead of `crm`, which knows nothing of what was sent to the other: a job whose answer was lost and that is replayed on the live version may do it in both. 37 jobs in flight and 4 dead letters were accepted with the old one. | replay older jobs on their own version",
            "CL0206 risk worker charge run.tell [crm -> crm2] @workers/charge.yml:12 was workers/charge.yml:12: `tell` calls `crm2` instead of `crm`, which knows nothing of what was sent to the other: a job whose answer was lost and that is replayed on the live version may do it in both. 37 jobs in flight and 4 dead letters were accepted with the old one. | replay older jobs on their own version",
            "CL0206 risk worker write run.mail [crm -> crm2] @workers/write.yml:8 was workers/write.yml:8: `mail` calls `crm2` instead of `crm`, which knows nothing of what was sent to the other: a job whose answer was lost and that is replayed on the live version may do it in both. 1 job in flight was accepted with the old one. | replay older jobs on their own version",
            "CL0200 note integration crm2 integrations.crm2 @clinch.yml:9 was -: `integrations.crm2` is new.",
        ],
    );
}

#[test]
fn j2_a_step_of_another_name_goes_under_another_key() {
    check(
        &[("workers/charge.yml", "- name: tell", "- name: notify")],
        &[
            "CL0207 risk worker charge run.notify [tell -> notify] @workers/charge.yml:12 was workers/charge.yml:10: step `tell` is called `notify` now, and its effect key changes with its name: a job that has done it and is replayed on the live version does it again. 37 jobs in flight and 4 dead letters were accepted with the old one. | keep the name; or replay older jobs on their own version, which is what happens if nothing is said",
        ],
    );
}

#[test]
fn j2_steps_in_another_order_are_done_in_both_orders_for_a_while() {
    let (charge, tell) = (
        "  - name: charge\n    http: {integration: crm, url: /charges, body_from: body}\n",
        "  - name: tell\n    http: {integration: crm, url: /told, body_from: body}\n",
    );
    check(
        &[("workers/charge.yml", &format!("{charge}{tell}"), &format!("{tell}{charge}"))],
        &[
            "CL0208 risk worker charge run [charge, tell -> tell, charge] @workers/charge.yml:10 was workers/charge.yml:10: `tell` is done before `charge`: a job that is replayed on the live version keeps what it has done and does the rest in the new order, so `tell` may come after `charge` for some and before it for others. 37 jobs in flight and 4 dead letters were accepted with the old one. | make sure that neither needs the other to be done",
        ],
    );
}

#[test]
fn j2_another_promise_of_a_partner_says_what_happens_to_a_lost_answer() {
    check(
        &[("clinch.yml", "idempotency: header\n    honoured_for: 24h", "idempotency: none")],
        &[
            "CL0209 risk integration crm integrations.crm.idempotency [header -> none] @clinch.yml:12 was clinch.yml:12: `crm` is `none` instead of `header`: an effect whose answer is lost is not sent again by itself: its job waits for a person. | make sure that it is so at the partner; jobs in flight keep the old promise",
            "CL0200 note integration crm integrations.crm.honoured_for [24h -> -] @- was clinch.yml:13: `integrations.crm.honoured_for` is gone.",
        ],
    );
    check(
        &[("clinch.yml", "honoured_for: 24h", "honoured_for: 1h")],
        &[
            "CL0209 risk integration crm integrations.crm.honoured_for [1d -> 1h] @clinch.yml:13 was clinch.yml:13: our key at `crm` is honoured for 1h instead of 1d: an effect that is unknown for longer waits for a person.",
        ],
    );
}

#[test]
fn j2_an_order_that_is_not_kept_names_who_waits() {
    check(
        &[("queues.yml", "fifo: true\n    group_from: body:/customer", "fifo: false")],
        &[
            "CL0211 risk queue orders queues.orders.fifo [true -> false] @queues.yml:3 was queues.yml:3: jobs of a group run side by side: a later one may be done before an earlier one. 37 jobs in flight are in it. | make sure that no step depends on the order",
            "CL0200 note queue orders queues.orders.group_from [body:/customer -> -] @- was queues.yml:4: `queues.orders.group_from` is gone.",
        ],
    );
}

#[test]
fn j2_a_queue_that_is_gone_names_who_is_in_it() {
    check(
        &[
            ("queues.yml", "  - name: news\n", ""),
            ("workers/write.yml", WRITE, ""),
            ("flows/news.yml", "queue: {name: news}", "queue: {name: orders}"),
        ],
        &[
            "CL0210 risk queue news queues.news @queues.yml:2 was queues.yml:7: queue `news` is gone: 1 job in flight is left in it, to be run as the version of then says. | take it away when it is empty: `clinch jobs ls` shows who is left",
            "CL0200 note flow news steps.enqueue.queue.name [news -> orders] @flows/news.yml:7 was flows/news.yml:7: `steps.enqueue.queue.name` is written differently.",
            "CL0200 note worker write workers/write.yml @- was workers/write.yml:1: `workers/write.yml` is gone.",
        ],
    );
}

#[test]
fn j2_smaller_budgets_and_caps_name_what_is_not_done() {
    check(
        &[("workers/charge.yml", "max: 10}", "max: 3}")],
        &[
            "CL0212 risk worker charge retry.budget [10 retries in 1h -> 3 retries in 1h] @workers/charge.yml:8 was workers/charge.yml:8: one entity may cause 3 retries in 1h instead of 10 retries in 1h: its jobs beyond that become dead letters sooner, or wait. | look at who has little left: `clinch budget ls`",
        ],
    );
    check(
        &[("policies.yml", "max: 3", "max: 1")],
        &[
            "CL0212 risk policy marketing policies.marketing.frequency [3 -> 1] @policies.yml:7 was policies.yml:7: a contact gets 1 per day instead of 3 per day: what is beyond ends as a noop and is not sent later.",
        ],
    );
}

#[test]
fn j2_more_calls_are_a_risk_for_who_is_called() {
    check(
        &[("clinch.yml", "rate: 10/s\n    concurrency: 4", "rate: 50/s\n    concurrency: 16")],
        &[
            "CL0213 risk integration crm integrations.crm.rate [10/1s -> 50/1s] @clinch.yml:10 was clinch.yml:10: `crm` is called at 50/1s instead of 10/1s: what it does not bear it refuses, and jobs fail. | make sure that the partner bears it, or raise it while it runs and look: `clinch set`",
            "CL0213 risk integration crm integrations.crm.concurrency [4 -> 16] @clinch.yml:11 was clinch.yml:11: `crm` gets 16 calls at once instead of 4: what it does not bear it refuses, and jobs fail. | make sure that the partner bears it, or raise it while it runs and look: `clinch set`",
        ],
    );
}

#[test]
fn j2_another_secret_refuses_what_is_signed_with_the_old_one() {
    check(
        &[("clinch.yml", "${secrets.SHOP_A}", "${secrets.SHOP_B}")],
        &[
            "CL0214 risk source shop sources.shop.secret [SHOP_A -> SHOP_B] @clinch.yml:6 was clinch.yml:6: what is signed with the secret SHOP_A is refused with 401 from now on: deliveries that the sender repeats, too. | keep the old secret beside the new one (`secrets:`) until the sender has changed",
        ],
    );
    check(
        &[("clinch.yml", "verify: shopify\n    secret: ${secrets.SHOP_A}", "verify: none")],
        &[
            "CL0214 risk source shop sources.shop.verify [a signature (shopify) -> nothing] @clinch.yml:5 was clinch.yml:5: anybody may send: nothing proves any more who a delivery is from. | leave `verify:` in place",
            "CL0202 risk source shop sources.shop.key_from [the id of preset `shopify` -> the id of preset `hmac`] @clinch.yml:5 was clinch.yml:5: deliveries are recognised by the id of preset `hmac` instead of the id of preset `shopify`: one that was seen under its old key passes once more, as a new one. 1 job in flight was accepted under the old one. | change it when the sender has nothing left to send again, or keep the old one",
            "CL0200 note source shop sources.shop.secret [${secrets.SHOP_A} -> -] @- was clinch.yml:6: `sources.shop.secret` is gone.",
        ],
    );
}

#[test]
fn j2_a_route_that_is_moved_or_gone_is_answered_404() {
    check(
        &[("flows/intake.yml", "path: /orders", "path: /v2/orders")],
        &[
            "CL0215 risk flow intake triggers [POST /orders -> POST /v2/orders] @flows/intake.yml:5 was flows/intake.yml:5: `POST /orders` becomes `POST /v2/orders`: whoever still calls the old one is answered 404; and keys belong to the path, so a delivery that was seen there is taken for a new one here. | keep the old route beside the new one until the sender has nothing left to send again",
        ],
    );
}

#[test]
fn j2_an_approval_less_is_told() {
    check(
        &[(
            "workers/write.yml",
            "  - name: review\n    if: \"body.readers > 100\"\n    approval: {title: send it, need: 2}\n",
            "",
        )],
        &[
            "CL0216 risk worker write run.review [review -> -] @workers/write.yml:5 was workers/write.yml:5: nobody is asked any more: `mail` runs without an approval. | make sure that whoever decided so far knows; what waits for them now still waits",
        ],
    );
    check(
        &[("workers/write.yml", "need: 2", "need: 1")],
        &[
            "CL0216 risk worker write run.review.approval.need [2 -> 1] @workers/write.yml:7 was workers/write.yml:7: 1 person must approve `review` instead of 2.",
        ],
    );
    check(
        &[("workers/write.yml", "    if: \"body.readers > 100\"\n", "")],
        &[
            "CL0220 risk worker write run.review.if [body.readers > 100 -> always] @workers/write.yml:5 was workers/write.yml:6: step `review` runs for every event, and not only where `body.readers > 100`.",
        ],
    );
}

#[test]
fn j2_what_is_shown_again_is_told() {
    check(
        &[("clinch.yml", "[crm_id, nickname]", "[nickname]")],
        &[
            "CL0217 risk clinch.yml masking.fields [crm_id, nickname -> nickname] @clinch.yml:2 was clinch.yml:2: fields called `crm_id` are shown again, in pages, answers and logs: personal data may become visible, also of events that are stored. | leave the rule in place unless you know that nothing personal is there",
        ],
    );
}

#[test]
fn j2_what_is_removed_at_once_is_told() {
    check(
        &[("queues.yml", "retention: 30d", "retention: 1d")],
        &[
            "CL0218 risk queue orders-dlq queues.orders-dlq.retention [30d -> 1d] @queues.yml:6 was queues.yml:6: dead letters are removed after 1d instead of 30d: those that are older go at once, and cannot be brought back. | replay what is still to be done first: `clinch dlq groups`",
        ],
    );
}

#[test]
fn j2_a_policy_that_asks_less_is_told() {
    check(
        &[("policies.yml", "    consent: \"body.agreed\"\n", "")],
        &[
            "CL0219 risk policy marketing policies.marketing.consent @policies.yml:3 was policies.yml:5: nobody asks whether a contact has agreed: those who have not are written to.",
        ],
    );
    check(
        &[("policies.yml", POLICIES, "")],
        &[
            "CL0219 risk policy marketing policies.marketing @- was policies.yml:3: policy `marketing` is gone: nobody asks whether a contact has agreed or how much it has had.",
            "CL0200 note policies.yml policies.yml @- was policies.yml:1: `policies.yml` is gone.",
        ],
    );
}

#[test]
fn j2_what_needs_a_start_says_so() {
    check(
        &[("clinch.yml", "masking:", "listen: 127.0.0.1:9000\nmasking:")],
        &[
            "CL0224 note clinch.yml listen @clinch.yml:1 was -: `listen` is read when a process starts: it takes effect at the next start. | restart the nodes one after the other",
        ],
    );
}

#[test]
fn j2_what_is_only_different_is_a_note_at_its_place() {
    check(
        &[
            ("workers/write.yml", "url: /mail", "url: /mails"),
            ("workers/charge.yml", "max_delay: 10m", "max_delay: 10m\n  jitter: none"),
            (
                "clinch.yml",
                "integrations:\n",
                "integrations:\n  other: {base_url: 'https://o.example.com', rate: 1/s}\n",
            ),
        ],
        &[
            "CL0200 note integration other integrations.other @clinch.yml:8 was -: `integrations.other` is new.",
            "CL0200 note worker charge retry.jitter [- -> none] @workers/charge.yml:7 was -: `retry.jitter` is new.",
            "CL0200 note worker write run.mail.http.url [/mail -> /mails] @workers/write.yml:9 was workers/write.yml:9: `run.mail.http.url` is written differently.",
        ],
    );
}

/// A shorter memory than the retries need is not a change that could be applied: the check says so, in its own sentence.
#[test]
fn j2_a_memory_below_the_retries_is_refused_with_the_risk_in_a_sentence() {
    let files = changed(&[("flows/intake.yml", "ttl: 48h", "ttl: 10m")]);
    let problems = load(&files).expect_err("too short");
    assert_eq!(
        problems.iter().map(|problem| problem.message.as_str()).collect::<Vec<_>>(),
        ["keys are forgotten after 10m, but worker `charge` may retry a job for 13m",]
    );
}

#[test]
fn j2_every_kind_of_change_has_a_code_of_its_own() {
    let codes: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.code()).collect();
    assert_eq!(codes.len(), Kind::ALL.len());
}
