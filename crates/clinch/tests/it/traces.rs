//! H2 H3: one trace for the life of an event. A collector built on OpenTelemetry's own protocol buffers is told of it over real sockets, partners
//! are told where they are asked to be, and the command line draws it without any collector.

use crate::cli;
use crate::process::{AGAIN, PATIENCE, Place, Sink, eventually};
use crate::world::{Answer, Call, OK, Reply, World, worker_with_step};
use bytes::Bytes;
use clinch_core::id::JobId;
use clinch_core::job::{Waits, Word};
use futures_util::stream::{self, StreamExt};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

const BODY: &str = r#"{"order":7,"campaign":"spring","email":"ada@example.com"}"#;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Http,
    Grpc,
}

/// One batch, as the collector got it.
#[derive(Clone)]
struct Told {
    request: ExportTraceServiceRequest,
    headers: HeaderMap,
    bytes: Bytes,
}

/// An OpenTelemetry collector.
struct Collector {
    address: SocketAddr,
    told: watch::Sender<Vec<Told>>,
}

impl Collector {
    async fn start(protocol: Protocol) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Collector { address: listener.local_addr().unwrap(), told: watch::Sender::default() };
        let told = collector.told.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let told = told.clone();
                let service = service_fn(move |request| answer(protocol, request, told.clone()));
                tokio::spawn(async move {
                    let stream = TokioIo::new(stream);
                    // Who closes the connection ends it.
                    let _ = match protocol {
                        Protocol::Http => {
                            hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await
                        }
                        Protocol::Grpc => {
                            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                            server.serve_connection(stream, service).await
                        }
                    };
                });
            }
        });
        collector
    }

    fn spans(&self) -> Vec<Span> {
        spans(&self.told.borrow())
    }

    /// Waits until what was told is so. A house that closes waits for the collector only a moment: this comes before.
    async fn until(&self, what: &str, is_so: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let mut told = self.told.subscribe();
        let waited = tokio::time::timeout(PATIENCE, told.wait_for(|told| is_so(&spans(told)))).await;
        assert!(waited.is_ok(), "{what}: {:#?}", self.spans().iter().map(|span| &span.name).collect::<Vec<_>>());
        drop(waited);
        self.spans()
    }

    /// `tracing:` of a workspace, and what else it says of that.
    fn settings(&self, more: &str) -> String {
        format!("tracing:\n  endpoint: http://{}\n{more}", self.address)
    }
}

fn spans(told: &[Told]) -> Vec<Span> {
    let scopes = told.iter().flat_map(|told| &told.request.resource_spans).flat_map(|of| &of.scope_spans);
    scopes.flat_map(|of| &of.spans).cloned().collect()
}

async fn answer(
    protocol: Protocol,
    request: Request<Incoming>,
    told: watch::Sender<Vec<Told>>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let (path, kind, message) = match protocol {
        Protocol::Http => ("/v1/traces", "application/x-protobuf", bytes.clone()),
        Protocol::Grpc => {
            assert_eq!((head.version, bytes[0]), (hyper::Version::HTTP_2, 0));
            assert_eq!(u32::from_be_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
            let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
            (path, "application/grpc", bytes.slice(5..))
        }
    };
    assert_eq!(
        (head.method.as_str(), head.uri.path(), &head.headers["content-type"]),
        ("POST", path, &kind.parse().unwrap())
    );
    let request = ExportTraceServiceRequest::decode(message).unwrap();
    told.send_modify(|all| all.push(Told { request, headers: head.headers, bytes }));
    let body = match protocol {
        Protocol::Http => Full::new(Bytes::new()).boxed(),
        Protocol::Grpc => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            Full::new(Bytes::from_static(&[0; 5])).with_trailers(std::future::ready(Some(Ok(trailers)))).boxed()
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", kind.parse().unwrap());
    Ok(response)
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn attribute(span: &Span, name: &str) -> Option<Value> {
    let found = span.attributes.iter().find(|pair| pair.key == name)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        other => panic!("{name} is {other:?}"),
    })
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    let mut found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
    found.sort_by_key(|span| span.start_time_unix_nano);
    found
}

fn one<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let [one] = named(spans, name)[..] else {
        panic!("{name}: {:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>())
    };
    one
}

fn links(span: &Span) -> Vec<String> {
    span.links.iter().map(|link| hex(&link.span_id)).collect()
}

fn trace_of(answer: &Answer) -> String {
    answer.header("clinch-trace-id").expect("every answer tells its trace").to_string()
}

/// Charges, asks people, gives.
fn worker() -> String {
    worker_with_step(
        "  - name: charge
    http: {url: 'http://TARGET/charge?sig=abc123&access_token=def456', body_from: body, idempotency: header}
  - name: review
    approval: {title: 'Order {{ body.order }}'}
  - name: give
    http: {url: 'http://TARGET/give', body_from: body, idempotency: header, propagate_trace: true}
",
    )
}

/// An event that failed twice, waited for people, died and was replayed: all of its life, and that of its duplicate.
async fn a_whole_life(protocol: Protocol) {
    let collector = Collector::start(protocol).await;
    let word = if protocol == Protocol::Grpc { "grpc" } else { "http" };
    let settings = collector.settings(&format!(
        "  protocol: {word}
  service: shop-hooks
  headers: {{x-tenant: 'team ${{secrets.HOME}}'}}
  attributes: {{shop.campaign: '{{{{ body.campaign }}}}', missing: '{{{{ body.nothing }}}}'}}
  personal: {{customer: '{{{{ body.email }}}}'}}
"
    ));
    let mut world = World::new(&[("clinch.yml", &settings), ("workers/charge.yml", &worker())]).await;
    world.target.script("/charge", [Reply::Status(503), Reply::Status(503), OK]);
    world.target.script("/give", [Reply::Status(404), OK]);
    let first = world.post("k-1", BODY).await;
    let (job, trace) = (first.job(), trace_of(&first));
    world.wait_until(job, "waiting for people", |story| story.row.waits == Some(Waits::Approval)).await;
    let again = world.post("k-1", BODY).await;
    assert!(again.is_replayed());
    assert_eq!(
        (trace_of(&again), &again.body),
        (trace.clone(), &first.body),
        "a duplicate is in the trace of the first"
    );
    let vote = json!({"vote": "approve", "reason": "fine"});
    assert_eq!(world.command(&format!("/api/v1/approvals/{job}/review/decide"), vote).await.status, 200);
    world.wait(job, Word::Dead).await;
    assert_eq!(world.replay(job, json!({"reason": "the address was wrong"})).await.status, 200);
    let story = world.wait(job, Word::Success).await;
    assert_eq!(story.attempts.len(), 4, "to wait is no attempt");
    drawn(&world, job, &trace).await;
    // That it is settled is the last that is told of an attempt.
    let ends = ["ack orders", "nack orders", "dead_letter orders"];
    let settled = |spans: &[Span]| ends.map(|name| named(spans, name).len());
    let spans = collector.until("the last attempt", |spans| settled(spans) == [1, 3, 1]).await;
    world.close().await;
    // What a worker's own loop did is no part of any event's trace.
    let (claims, spans): (Vec<Span>, Vec<Span>) = spans.into_iter().partition(|span| span.name == "receive orders");
    assert_eq!(spans.iter().map(|span| hex(&span.trace_id)).collect::<BTreeSet<_>>(), BTreeSet::from([trace.clone()]));
    let ids: BTreeSet<String> = spans.iter().map(|span| hex(&span.span_id)).collect();
    assert_eq!(ids.len(), spans.len(), "each has an id of its own");

    // The deliveries, and the event that came of the first.
    let deliveries = named(&spans, "POST /hooks/orders");
    let creation = one(&spans, "send orders");
    let created = hex(&creation.span_id);
    assert_eq!((deliveries.len(), creation.kind()), (2, SpanKind::Producer));
    assert_eq!(
        (hex(&deliveries[0].parent_span_id), hex(&creation.parent_span_id)),
        (String::new(), hex(&deliveries[0].span_id))
    );
    assert_eq!((hex(&deliveries[1].parent_span_id), links(deliveries[1])), (created.clone(), vec![created.clone()]));
    for delivery in &deliveries {
        assert_eq!((delivery.kind(), is_error(delivery)), (SpanKind::Server, false));
        for (name, value) in [
            ("http.request.method", json!("POST")),
            ("http.route", json!("/hooks/orders")),
            ("url.path", json!("/hooks/orders")),
            ("url.scheme", json!("http")),
            ("http.response.status_code", json!(202)),
            ("network.protocol.version", json!("1.1")),
        ] {
            assert_eq!(attribute(delivery, name), Some(value), "{name}");
        }
        assert!(attribute(delivery, "client.address").is_some());
    }

    // T-116: attempts are children of the creation, linked to it and to the one before.
    let attempts = named(&spans, "process orders");
    let outcomes = ["failed", "failed", "put_off", "refused", "success"];
    // To wait for people is no attempt: the third goes on when they have decided.
    let (numbers, before) = ([1, 2, 3, 3, 4], [None, Some(0), Some(1), Some(1), Some(3)]);
    for (place, (attempt, outcome)) in attempts.iter().zip(outcomes).enumerate() {
        assert_eq!((attempt.kind(), hex(&attempt.parent_span_id)), (SpanKind::Consumer, created.clone()));
        let before = before[place].map(|before: usize| hex(&attempts[before].span_id));
        assert_eq!(links(attempt), [created.clone()].into_iter().chain(before).collect::<Vec<_>>());
        let is_failed = ["failed", "refused"].contains(&outcome);
        assert_eq!(is_error(attempt), is_failed, "{outcome}");
        for (name, value) in [
            ("messaging.system", json!("clinch")),
            ("messaging.operation.name", json!("process")),
            ("messaging.operation.type", json!("process")),
            ("messaging.destination.name", json!("orders")),
            ("messaging.message.id", json!(story.row.event.to_string())),
            ("clinch.job.id", json!(job.to_string())),
            ("clinch.attempt", json!(numbers[place])),
            ("clinch.replay", json!(u32::from(place == 4))),
            ("clinch.outcome", json!(outcome)),
            ("shop.campaign", json!("spring")),
        ] {
            assert_eq!(attribute(attempt, name), Some(value), "{name} of {}", place + 1);
        }
        assert_eq!(attribute(attempt, "error.type").is_some(), is_failed);
        assert_eq!(attribute(attempt, "missing"), None, "what an event does not say is not told");
        let customer = attribute(attempt, "customer").expect("it is told");
        assert!(customer.as_str().unwrap().starts_with("h_"), "{customer}");
    }
    assert_eq!(attribute(attempts[0], "customer"), attribute(attempts[4], "customer"));
    assert_eq!(attempts[2].events[0].name, "clinch.waits");
    let approval = one(&spans, "approval review");
    assert_eq!(
        (hex(&approval.parent_span_id), attribute(approval, "clinch.approval.decision")),
        (created.clone(), Some(json!("approved")))
    );
    assert!(approval.end_time_unix_nano > approval.start_time_unix_nano);

    // Each run began with a claim, which took this job alone.
    assert_eq!(claims.len(), 5);
    for claim in &claims {
        check_claim(claim, 1);
        assert_eq!((hex(&claim.links[0].trace_id), links(claim)), (trace.clone(), vec![created.clone()]));
    }
    let traces: BTreeSet<&[u8]> = claims.iter().map(|claim| &*claim.trace_id).collect();
    assert_eq!(traces.len(), 5, "each claim has a trace of its own");

    // Effects are children of their attempts, calls of their effects.
    let (charges, gives) = (named(&spans, "effect charge"), named(&spans, "effect give"));
    let parents = |spans: &[&Span]| spans.iter().map(|span| hex(&span.parent_span_id)).collect::<Vec<_>>();
    let of_attempts = |places: &[usize]| places.iter().map(|place| hex(&attempts[*place].span_id)).collect::<Vec<_>>();
    assert_eq!((parents(&charges), parents(&gives)), (of_attempts(&[0, 1, 2]), of_attempts(&[3, 4])));
    let told: Vec<_> = charges.iter().map(|effect| attribute(effect, "clinch.effect.outcome").unwrap()).collect();
    assert_eq!(told, ["not_done", "not_done", "done"]);
    let calls = named(&spans, "POST");
    assert_eq!(parents(&calls), charges.iter().chain(&gives).map(|effect| hex(&effect.span_id)).collect::<Vec<_>>());
    let statuses: Vec<_> = calls.iter().map(|call| attribute(call, "http.response.status_code").unwrap()).collect();
    assert_eq!(statuses, [503, 503, 200, 404, 200]);
    // T-115: what a partner answers with 400 and more is a failure of the call.
    let errors: Vec<_> = calls.iter().map(|call| (is_error(call), attribute(call, "error.type"))).collect();
    let error = |status: &str| (true, Some(json!(status)));
    assert_eq!(errors, [error("503"), error("503"), (false, None), error("404"), (false, None)]);
    let sends: Vec<_> = calls.iter().map(|call| attribute(call, "http.request.resend_count")).collect();
    assert_eq!(sends, [None, Some(json!(1)), Some(json!(2)), None, Some(json!(1))]);
    // T-117: what signs a url is not told.
    let url = format!("http://{}/charge?sig=REDACTED&access_token=REDACTED", world.target.address);
    assert_eq!(attribute(calls[0], "url.full"), Some(json!(url)));
    assert_eq!(attribute(calls[0], "server.port"), Some(json!(world.target.address.port())));
    assert!(calls.iter().all(|call| call.kind() == SpanKind::Client));
    for (name, attempt) in [("ack orders", 4), ("dead_letter orders", 3)] {
        assert_eq!(hex(&one(&spans, name).parent_span_id), hex(&attempts[attempt].span_id));
    }
    assert_eq!(named(&spans, "nack orders").len(), 3);

    // The partner that asks for it is told the same call that the collector is; the other is told nothing.
    let outward = world.target.calls_at("/give");
    let told: Vec<String> = outward.iter().map(|call| call.headers["traceparent"].clone()).collect();
    let expected: Vec<String> = calls[3..].iter().map(|call| format!("00-{trace}-{}-03", hex(&call.span_id))).collect();
    assert_eq!(told, expected);
    assert!(world.target.calls_at("/charge").iter().all(|call| !call.headers.contains_key("traceparent")));

    let batches = collector.told.borrow().clone();
    let resource = &batches[0].request.resource_spans[0].resource.as_ref().unwrap().attributes;
    let service = resource.iter().find(|pair| pair.key == "service.name").and_then(|pair| pair.value.clone());
    assert_eq!(service.and_then(|value| value.value), Some(Any::StringValue("shop-hooks".into())));
    let home = format!("team {}", std::env::var("HOME").unwrap());
    for told in &batches {
        assert_eq!(told.headers["x-tenant"], home);
        // P9: nothing of the payload, and no secret.
        let text = String::from_utf8_lossy(&told.bytes);
        for secret in ["ada@example.com", "abc123", "def456", "\"order\""] {
            assert!(!text.contains(secret), "{secret}");
        }
    }
}

/// A root of its own, by which so many jobs were taken.
fn check_claim(claim: &Span, messages: usize) {
    assert_eq!((claim.kind(), claim.parent_span_id.len(), is_error(claim)), (SpanKind::Client, 0, false));
    for (name, value) in [
        ("messaging.system", json!("clinch")),
        ("messaging.operation.name", json!("receive")),
        ("messaging.operation.type", json!("receive")),
        ("messaging.destination.name", json!("orders")),
        ("messaging.batch.message_count", json!(messages)),
    ] {
        assert_eq!(attribute(claim, name), Some(value), "{name}");
    }
    assert_eq!(attribute(claim, "messaging.message.id"), None, "it is of several");
}

/// The same life, as the command line draws it from the store alone.
async fn drawn(world: &World, job: JobId, trace: &str) {
    let event = world.job(job).await.row.event.to_string();
    for name in [&job.to_string(), &event, trace, "k-1"] {
        let said = cli::ask(world, &["trace", name, "-o", "table"]).await;
        assert_eq!(said.code, 0, "{name}: {}", said.err);
        for part in [
            &format!("trace {trace}"),
            "delivery",
            "answered 202",
            "1× the same again: nothing repeated",
            "attempt 1",
            "failed: ",
            "the pause after ",
            "approval review",
            "approved by ",
            "attempt 3",
            "refused: ",
            "job.replay",
            "a dead letter until ",
            "attempt 4",
            "effect charge",
            "done, answered 200, tried 3 times",
            "effect give",
        ] {
            assert!(said.out.contains(part), "{name}: {part:?} is not in\n{}", said.out);
        }
    }
    let told = cli::ask(world, &["trace", &job.to_string(), "--json"]).await.json();
    assert_eq!((&told["schema"], &told["trace_id"]), (&json!("clinch.trace/v1"), &json!(trace)));
    let kinds: BTreeSet<&str> =
        told["rows"].as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, BTreeSet::from(["act", "approval", "attempt", "delivery", "effect", "wait"]));
    let unknown = cli::ask(world, &["trace", "job_01HZX5T0N8W2A"]).await;
    assert_eq!((unknown.code, unknown.out.as_str()), (3, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_t115_t116_t117_p8_p9_a_collector_gets_a_whole_life_in_one_trace_over_http() {
    a_whole_life(Protocol::Http).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_t115_t116_t117_p8_p9_a_collector_gets_a_whole_life_in_one_trace_over_grpc() {
    a_whole_life(Protocol::Grpc).await;
}

/// A source whose senders have tokens and which says this of their traces; its one step tells the partner its trace.
async fn door(trace: &str, more: &str) -> (World, String) {
    let clinch =
        format!("sources:\n  door: {{verify: sender, key_from: 'header:x-key', trace: {{incoming: {trace}}}}}\n{more}");
    let flow =
        "version: 1\nname: orders\ntriggers:\n  - source: door\nsteps:\n  - name: enqueue\n    queue: {name: orders}\n";
    let step = "  - name: call\n    http: {url: 'http://TARGET/call', body_from: body, idempotency: header, propagate_trace: true}\n";
    let files = [("clinch.yml", &*clinch), ("flows/orders.yml", flow), ("workers/charge.yml", &worker_with_step(step))];
    let world = World::new(&files).await;
    let made = cli::ask(&world, &["token", "new", "--sender", "shop", "--json"]).await.json();
    (world, format!("Bearer {}", made["text"].as_str().unwrap()))
}

/// One delivery with these headers, and how the partner was called for it.
async fn called_for(world: &World, token: &str, key: &str, headers: &[(&str, &str)]) -> (Answer, Call) {
    let before = world.target.calls().len();
    let all = [&[("authorization", token), ("x-key", key)], headers].concat();
    let answer = world.deliver("/in/door", &all, r#"{"id":1}"#).await;
    world.wait(answer.job(), Word::Success).await;
    let call = world.target.called(before + 1).await[before].clone();
    assert!(call.headers["traceparent"].contains(&trace_of(&answer)), "the answer and the call tell one trace");
    (answer, call)
}

const REMOTE: &str = "12345678901234567890123456789012";
const PARENT: &str = "00-12345678901234567890123456789012-1234567890123456-01";

#[tokio::test(flavor = "multi_thread")]
async fn t112_t114_a_known_senders_trace_goes_on_or_a_new_one_begins_as_w3c_demands() {
    let (world, token) = door("continue", "").await;
    let continued = |call: &Call| call.headers["traceparent"].starts_with(&format!("00-{REMOTE}-"));
    let mut keys = 0..;
    let mut ask = async |headers: &[(&str, &str)]| {
        let key = format!("k-{}", keys.next().unwrap());
        called_for(&world, &token, &key, headers).await
    };
    let mut parents = BTreeSet::new();
    for good in [
        PARENT,
        "00-12345678901234567890123456789012-1234567890123456-00",
        "cc-12345678901234567890123456789012-1234567890123456-01",
        "cc-12345678901234567890123456789012-1234567890123456-01-what-the-future-brings",
    ] {
        let (_, call) = ask(&[("traceparent", good)]).await;
        assert!(continued(&call), "{good}: {call:?}");
        let flags = if good.ends_with("00") { "00" } else { "01" };
        assert!(call.headers["traceparent"].ends_with(flags), "{good}: {call:?}");
        assert!(!call.headers["traceparent"].contains("-1234567890123456-"), "a span of our own");
        assert!(parents.insert(call.headers["traceparent"].clone()));
    }
    let (_, call) = ask(&[("traceparent", &PARENT.replace("-01", "-02"))]).await;
    assert!(continued(&call) && call.headers["traceparent"].ends_with("-02"), "{call:?}");
    for bad in [
        "ff-12345678901234567890123456789012-1234567890123456-01",
        "00-00000000000000000000000000000000-1234567890123456-01",
        "00-12345678901234567890123456789012-0000000000000000-01",
        "00-12345678901234567890123456789012-123456789012345A-01",
        "00-12345678901234567890123456789012-1234567890123456-1",
        "00-12345678901234567890123456789012-1234567890123456-01.",
        "00-12345678901234567890123456789012-1234567890123456-01-what-the-future-brings",
        "cc-12345678901234567890123456789012-1234567890123456-01.what-the-future-brings",
        "0.-12345678901234567890123456789012-1234567890123456-01",
        "000-12345678901234567890123456789012-1234567890123456-01",
        "00-1234567890123456789012345678901-1234567890123456-01",
    ] {
        let (_, call) = ask(&[("traceparent", bad), ("tracestate", "foo=1")]).await;
        assert!(!continued(&call) && !call.headers.contains_key("tracestate"), "{bad}: {call:?}");
    }
    let (_, call) = ask(&[("traceparent", PARENT), ("traceparent", PARENT)]).await;
    assert!(!continued(&call), "two of them: {call:?}");
    let (_, call) = ask(&[("tracestate", "foo=1")]).await;
    assert!(!continued(&call) && !call.headers.contains_key("tracestate"), "{call:?}");
    let members = |count: usize| (0..count).map(|nth| format!("bar{nth:02}={nth:02}")).collect::<Vec<_>>().join(",");
    for (sent, expected) in [
        (vec!["foo=1,bar=2"], Some("foo=1,bar=2".to_string())),
        (vec!["foo=1 \t , \t bar=2", "", "baz=3"], Some("foo=1,bar=2,baz=3".to_string())),
        (vec!["foo@=1,foo@@bar=2"], Some("foo@=1,foo@@bar=2".to_string())),
        (vec![&*members(32)], Some(members(32))),
        (vec![&*members(33)], None),
        (vec!["foo =1"], None),
        (vec!["FOO=1"], None),
        (vec!["@foo=1,bar=2"], None),
        (vec!["foo=bar=baz"], None),
        (vec!["foo=,bar=3"], None),
    ] {
        let mut headers = vec![("traceparent", PARENT), ("baggage", "user=ada")];
        headers.extend(sent.iter().map(|state| ("tracestate", *state)));
        let (_, call) = ask(&headers).await;
        assert!(continued(&call));
        assert_eq!(call.headers.get("tracestate"), expected.as_ref(), "{sent:?}");
        assert!(!call.headers.contains_key("baggage"));
    }
    // Nobody knows when a sender's trace began: its events are found all the same.
    let found = cli::ask(&world, &["trace", REMOTE, "--json"]).await.json();
    assert!(found["rows"].as_array().unwrap().len() > 10, "{found}");
    let (first, _) = ask(&[("traceparent", PARENT)]).await;
    let again = world
        .deliver("/in/door", &[("authorization", &token), ("x-key", &format!("k-{}", keys.start - 1))], r#"{"id":1}"#)
        .await;
    assert!(again.is_replayed());
    assert_eq!((trace_of(&first), trace_of(&again)), (REMOTE.to_string(), REMOTE.to_string()));
    world.close_and_verify().await;
}

/// The jobs or events of a list of the API, each with the trace that it tells.
async fn listed(world: &World, path: &str, list: &str) -> BTreeMap<String, Value> {
    let told = world.admin(&format!("/api/v1/{path}")).await.json();
    let rows = told.pointer(list).and_then(Value::as_array).unwrap_or_else(|| panic!("{path}: {told}"));
    let id = |row: &Value| row.get("job_id").unwrap_or(&row["id"]).as_str().unwrap().to_string();
    rows.iter().map(|row| (id(row), row["trace_id"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_every_list_tells_the_trace_that_the_sender_was_told() {
    let sources = "sources:\n  door: {verify: sender, key_from: 'header:x-key', trace: {incoming: continue}}\n";
    let flow =
        "version: 1\nname: door\ntriggers:\n  - source: door\nsteps:\n  - name: enqueue\n    queue: {name: orders}\n";
    let files = [("clinch.yml", sources), ("flows/door.yml", flow), ("workers/charge.yml", &worker())];
    let world = World::new(&files).await;
    let made = cli::ask(&world, &["token", "new", "--sender", "shop", "--json"]).await.json();
    let token = format!("Bearer {}", made["text"].as_str().unwrap());
    world.target.script("/charge", [Reply::Status(404), OK]);
    let ours = world.post("k-1", BODY).await;
    world.wait(ours.job(), Word::Dead).await;
    let sent = [("authorization", &*token), ("x-key", "k-2"), ("traceparent", PARENT)];
    let theirs = world.deliver("/in/door", &sent, BODY).await;
    world.wait_until(theirs.job(), "waiting for people", |story| story.row.waits == Some(Waits::Approval)).await;
    assert_eq!(trace_of(&theirs), REMOTE);

    let event = |answer: &Answer| answer.json()["event_id"].as_str().unwrap().to_string();
    let of = |answer: &Answer| (answer.job().to_string(), json!(trace_of(answer)));
    let (dead, waiting) = (BTreeMap::from([of(&ours)]), BTreeMap::from([of(&theirs)]));
    let both = BTreeMap::from([of(&ours), of(&theirs)]);
    let drop = json!({"jobs": [ours.job().to_string()], "reason": "poison"});
    assert_eq!(world.command("/api/v1/dead/drop", drop).await.json()["jobs"][0]["outcome"], "asked");
    let plan = world.command("/api/v1/replays", json!({"query": "state:dead"})).await.json();
    let of_plan = format!("replays/{}/jobs", plan["plan"]["id"].as_str().unwrap());
    for (path, list, expected) in [
        ("jobs", "/jobs", &both),
        ("jobs?state=waiting", "/jobs", &waiting),
        ("dead", "/jobs", &dead),
        ("effects", "/effects", &both),
        ("approvals", "/approvals", &waiting),
        ("dead/drops", "/drops", &dead),
        (&of_plan, "/jobs", &dead),
        (&format!("events/{}", event(&theirs)), "/jobs", &waiting),
        (&format!("search?q={REMOTE}"), "/jobs/jobs", &waiting),
        (&format!("search?q={}", trace_of(&ours)), "/jobs/jobs", &dead),
        ("keys?key=k-1", "/found/0/jobs", &dead),
    ] {
        assert_eq!(&listed(&world, path, list).await, expected, "{path}");
    }
    let events = [&ours, &theirs].map(|answer| (event(answer), json!(trace_of(answer))));
    assert_eq!(listed(&world, "events", "/events").await, BTreeMap::from(events));
    for answer in [&ours, &theirs] {
        let (job, trace) = of(answer);
        let shown = world.admin(&format!("/api/v1/jobs/{job}")).await.json();
        assert_eq!((&shown["job"]["trace_id"], &shown["event"]["trace_id"]), (&trace, &trace));
        let effect = world.admin(&format!("/api/v1/effects/{job}/charge")).await.json();
        assert_eq!(effect["job"]["trace_id"], trace);
    }
    let approval = world.admin(&format!("/api/v1/approvals/{}/review", theirs.job())).await.json();
    assert_eq!(approval["approval"]["trace_id"], REMOTE);
    world.close_and_verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t113_unless_told_otherwise_a_senders_trace_is_linked_and_its_flags_decide_nothing() {
    let collector = Collector::start(Protocol::Http).await;
    let (mut world, token) = door("link", &collector.settings("")).await;
    let sent = [("traceparent", PARENT), ("tracestate", "foo=1"), ("baggage", "user=ada")];
    let (answer, call) = called_for(&world, &token, "k-1", &sent).await;
    let trace = trace_of(&answer);
    assert_ne!(trace, REMOTE);
    assert!(!call.headers.contains_key("tracestate") && !call.headers.contains_key("baggage"), "{call:?}");
    let spans = collector.until("the end", |spans| !named(spans, "ack orders").is_empty()).await;
    world.close().await;
    let delivery = one(&spans, "POST /in/door");
    assert_eq!((hex(&delivery.trace_id), delivery.parent_span_id.len()), (trace, 0));
    let linked = &delivery.links[0];
    assert_eq!((hex(&linked.trace_id), hex(&linked.span_id)), (REMOTE.to_string(), "1234567890123456".to_string()));

    // Of our own traces none is recorded, whatever the sender wants; and one that is to be ignored is not even linked.
    let (mut world, token) = door("link", &collector.settings("  sample: 0\n")).await;
    let before = collector.spans().len();
    let (_, call) = called_for(&world, &token, "k-1", &sent).await;
    assert!(call.headers["traceparent"].ends_with("-02"), "not recorded: {call:?}");
    world.close().await;
    assert_eq!(collector.spans().len(), before);
    let (mut world, token) = door("ignore", &collector.settings("")).await;
    let (answer, _) = called_for(&world, &token, "k-1", &sent).await;
    let ours = trace_of(&answer);
    let is_delivery = |span: &Span| hex(&span.trace_id) == ours && span.kind() == SpanKind::Server;
    let spans = collector.until("the delivery", |spans| spans.iter().any(is_delivery)).await;
    world.close().await;
    let delivery = spans.iter().find(|span| is_delivery(span)).unwrap();
    assert_eq!(delivery.links.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn t115_who_is_refused_is_no_failure_of_ours_and_failures_are_told_of_traces_that_are_not_recorded() {
    let collector = Collector::start(Protocol::Http).await;
    let (mut world, token) = door("link", &collector.settings("")).await;
    let refused = world.deliver("/in/door", &[("x-key", "k")], "{}").await;
    assert_eq!(refused.status, 401);
    let nowhere = world.deliver("/nowhere", &[], "{}").await;
    assert_eq!(nowhere.status, 404);
    let spans = collector.until("both", |spans| spans.len() == 2).await;
    world.close().await;
    let delivery = one(&spans, "POST /in/door");
    assert_eq!((hex(&delivery.trace_id), is_error(delivery)), (trace_of(&refused), false));
    assert_eq!(
        (attribute(delivery, "error.type"), attribute(delivery, "http.response.status_code")),
        (None, Some(json!(401)))
    );
    assert_eq!(hex(&one(&spans, "POST").trace_id), trace_of(&nowhere), "a path that nobody has is not told");

    let (mut world, token_too) = door("link", &collector.settings("  sample: 0\n")).await;
    assert_ne!(token, token_too);
    world.target.script("/call", [Reply::Status(503), OK]);
    let sent = [("authorization", token_too.as_str()), ("x-key", "k")];
    let answer = world.deliver("/in/door", &sent, r#"{"id":1}"#).await;
    world.wait(answer.job(), Word::Success).await;
    collector.until("the failure", |spans| spans.len() >= 6).await;
    world.close().await;
    let spans = collector.spans();
    let names: BTreeSet<&str> = spans[2..].iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, BTreeSet::from(["process orders", "nack orders", "effect call", "POST"]));
    assert_eq!(spans.len(), 6, "the attempt that went well is not told");
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_a_claim_is_linked_to_every_event_whose_job_it_took() {
    let collector = Collector::start(Protocol::Http).await;
    let mut world = World::new(&[("clinch.yml", &collector.settings(""))]).await;
    let stop = json!({"scope": "queue:orders", "reason": "a look"});
    assert_eq!(world.command("/api/v1/pauses", stop).await.status, 200);
    let mut answers = Vec::new();
    for nth in 0..3 {
        answers.push(world.post(&format!("k-{nth}"), BODY).await);
    }
    let resumed = world.command("/api/v1/pauses/queue:orders/resume", json!({"reason": "looked"})).await;
    assert_eq!(resumed.status, 200);
    for answer in &answers {
        world.wait(answer.job(), Word::Success).await;
    }
    let spans = collector.until("all three", |spans| named(spans, "ack orders").len() == 3).await;
    world.close().await;
    let claim = one(&spans, "receive orders");
    check_claim(claim, 3);
    let linked: BTreeSet<(String, String)> =
        claim.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect();
    let created: BTreeSet<(String, String)> =
        named(&spans, "send orders").iter().map(|span| (hex(&span.trace_id), hex(&span.span_id))).collect();
    assert_eq!(linked, created);
    assert_eq!(
        linked.iter().map(|(trace, _)| trace.clone()).collect::<BTreeSet<_>>(),
        answers.iter().map(trace_of).collect()
    );
}

fn says(body: &'static str) -> Reply {
    Reply::With { status: 200, headers: &[], body }
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_t116_t117_a_lookup_is_a_call_of_its_attempt_and_tells_the_partner_its_trace() {
    let collector = Collector::start(Protocol::Http).await;
    let crm = "integrations:
  crm:
    base_url: http://TARGET
    propagate_trace: true
    lookup: {url: '/leads?key={{ step.key }}', done: 'answer.body.total > 0'}
";
    let step = "  - name: charge\n    http: {integration: crm, url: /charge, body_from: body}\n";
    let clinch = collector.settings(crm);
    let mut world = World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker_with_step(step))]).await;
    world.target.script("/charge", [Reply::Drop]);
    world.target.script("/leads", [Reply::Status(503), says(r#"{"total": 1}"#)]);
    let answer = world.post("k-1", BODY).await;
    let (job, trace) = (answer.job(), trace_of(&answer));
    world.wait(job, Word::Success).await;
    // And a person who wants to know asks in the same trace.
    let verified = cli::ask(&world, &["effects", "verify", &format!("{job}/charge"), "-o", "table"]).await;
    assert_eq!(verified.code, 0, "{} {}", verified.out, verified.err);
    let told = |spans: &[Span]| (named(spans, "GET").len(), named(spans, "ack orders").len());
    let spans = collector.until("the questions", |spans| told(spans) == (3, 1)).await;
    world.close().await;
    let (attempts, questions) = (named(&spans, "process orders"), named(&spans, "GET"));
    let creation = one(&spans, "send orders");
    let parents: Vec<String> = questions.iter().map(|span| hex(&span.parent_span_id)).collect();
    assert_eq!(parents, [attempts[1], attempts[2], creation].map(|span| hex(&span.span_id)));
    for question in &questions {
        assert_eq!((question.kind(), hex(&question.trace_id)), (SpanKind::Client, trace.clone()));
        for (name, value) in [
            ("http.request.method", json!("GET")),
            ("url.full", json!(format!("http://{}/leads?key=REDACTED", world.target.address))),
            ("server.port", json!(world.target.address.port())),
            ("clinch.question", json!("lookup")),
            ("clinch.effect.name", json!("charge")),
            ("clinch.integration", json!("crm")),
        ] {
            assert_eq!(attribute(question, name), Some(value), "{name}");
        }
    }
    let told: Vec<_> = questions.iter().map(|span| (is_error(span), attribute(span, "error.type"))).collect();
    assert_eq!(told, [(true, Some(json!("503"))), (false, None), (false, None)]);
    let asked = world.target.calls_at("/leads");
    let heard: Vec<String> = asked.iter().map(|call| call.headers["traceparent"].clone()).collect();
    let expected: Vec<String> = questions.iter().map(|span| format!("00-{trace}-{}-03", hex(&span.span_id))).collect();
    assert_eq!(heard, expected, "the partner is told the same call that the collector is");
}

#[tokio::test(flavor = "multi_thread")]
async fn t117_p9_a_secret_in_an_address_is_not_told() {
    let collector = Collector::start(Protocol::Http).await;
    // Whatever the process has in its environment can be named as a secret.
    let step =
        "  - name: charge\n    http: {url: 'http://TARGET/bot${secrets.CARGO_PKG_NAME}/charge', idempotency: header}\n";
    let clinch = collector.settings("");
    let mut world = World::new(&[("clinch.yml", &clinch), ("workers/charge.yml", &worker_with_step(step))]).await;
    world.post_and_wait("k-1", BODY, Word::Success).await;
    let spans = collector.until("the call", |spans| !named(spans, "POST").is_empty()).await;
    world.close().await;
    assert_eq!(world.target.calls()[0].path, "/botclinch/charge");
    let told = json!(format!("http://{}/bot***/charge", world.target.address));
    assert_eq!(attribute(one(&spans, "POST"), "url.full"), Some(told));
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_a_partner_who_is_asked_for_consent_is_a_call_of_the_attempt_and_failures_are_always_told() {
    let collector = Collector::start(Protocol::Http).await;
    let policies = "policies:
  marketing:
    integrations: [shop]
    consent: {integration: crm, url: '/consents/7', given: answer.body.agreed}
";
    let house = async |more: &str| {
        let both = "integrations:\n  crm: {base_url: 'http://TARGET'}\n  shop: {base_url: 'http://TARGET', idempotency: header}\n";
        let step = "  - name: charge\n    http: {integration: shop, url: /charge, body_from: body}\n";
        let clinch = collector.settings(&format!("{more}{both}"));
        let files =
            [("clinch.yml", &*clinch), ("policies.yml", policies), ("workers/charge.yml", &worker_with_step(step))];
        World::new(&files).await
    };
    let mut world = house("").await;
    world.target.script("/consents/7", [says(r#"{"agreed": true}"#)]);
    let answer = world.post("k-1", BODY).await;
    world.wait(answer.job(), Word::Success).await;
    let spans = collector.until("the end", |spans| !named(spans, "ack orders").is_empty()).await;
    world.close().await;
    let (attempt, question) = (one(&spans, "process orders"), one(&spans, "GET"));
    assert_eq!((question.kind(), &question.parent_span_id), (SpanKind::Client, &attempt.span_id));
    assert_eq!(attribute(question, "clinch.question"), Some(json!("consent")));
    assert_eq!(attribute(question, "clinch.effect.name"), Some(json!("charge")));
    assert!(question.end_time_unix_nano <= one(&spans, "effect charge").start_time_unix_nano, "it was asked before");
    assert!(!world.target.calls_at("/consents/7")[0].headers.contains_key("traceparent"), "it did not ask for it");

    let before = collector.spans().len();
    let mut world = house("  sample: 0\n").await;
    world.target.script("/consents/7", [Reply::Status(503), says(r#"{"agreed": true}"#)]);
    world.post_and_wait("k-1", BODY, Word::Success).await;
    collector.until("the failure", |spans| spans.len() >= before + 3).await;
    world.close().await;
    let spans = collector.spans();
    let names: Vec<&str> = spans[before..].iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["GET", "process orders", "nack orders"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn t118_a_collector_that_hangs_costs_spans_and_nothing_else() {
    let hung = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = format!("tracing: {{endpoint: 'http://{}'}}\n", hung.local_addr().unwrap());
    let held = Arc::new(std::sync::Mutex::new(Vec::new()));
    let taken = held.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = hung.accept().await {
            taken.lock().unwrap().push(stream);
        }
    });
    let mut world = World::new(&[("clinch.yml", &settings)]).await;
    // Six spans each, and those of the claims: more than wait for the collector at most.
    let most = clinch::tracer::QUEUE_MAX;
    let jobs: Vec<JobId> = stream::iter(0..most / 4)
        .map(|nth| async move { nth })
        .buffer_unordered(32)
        .map(|nth| {
            let world = &world;
            async move { world.post(&format!("k-{nth}"), BODY).await.job() }
        })
        .buffer_unordered(32)
        .collect()
        .await;
    for job in &jobs {
        world.wait(*job, Word::Success).await;
    }
    assert_eq!(world.target.calls().len(), jobs.len(), "each was done once");
    assert!(!held.lock().unwrap().is_empty(), "the collector was called, and still holds what it was told");
    let metrics = world.client.get(world.admin_url("/metrics")).bearer_auth(world.token()).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let line = metrics.lines().find_map(|line| line.strip_prefix("clinch_otlp_dropped_spans_total ")).unwrap();
    let (dropped, told) = (line.parse::<usize>().unwrap(), jobs.len() * 6);
    assert!(
        dropped > 0 && dropped >= told - most - 1_024,
        "{dropped} of {told} were dropped, and no more than {most} wait"
    );
    world.close().await;
    world.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn h2_the_environment_names_the_collector_and_every_line_about_a_job_its_trace() {
    let collector = Collector::start(Protocol::Http).await;
    let place = Place::new(&[AGAIN]).await;
    let address = format!("http://{}", collector.address);
    let server = place.start_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &address)]).await;
    let sink: &Sink = &place.sink;
    sink.answer_with(|_| 404);
    let client = crate::process::client();
    let sent = client.post(server.hook("again")).header("idempotency-key", "k-1").body("{}").send().await.unwrap();
    let trace = sent.headers()["clinch-trace-id"].to_str().unwrap().to_string();
    eventually("the log tells it", PATIENCE, async || {
        server.said().lines().any(|line| line.contains("is a dead letter") && line.contains(&trace))
    })
    .await;
    let ours =
        |spans: &[Span]| spans.iter().any(|span| span.name == "dead_letter again" && hex(&span.trace_id) == trace);
    collector.until("the dead letter", ours).await;
    server.stop().await;
}
