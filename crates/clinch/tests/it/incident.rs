//! The night the cart recovery broke, once more: whoever makes the codes throttles and slows down, and every webhook comes
//! twice. The example's own workspace goes through it; `CLINCH_TEST_CARTS=10000` makes it as big as it was.

use crate::examples::{Partners, SHOP, cart_recovery, cli, place};
use crate::policies::zone_at;
use crate::process::{PATIENCE, Place, client, eventually};
use crate::sources::mac;
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Caps as wide as the night: what is counted is what was done twice, and not what a policy kept from being done.
const POLICIES: &str = "policies:
  marketing:
    channels: [email]
    contact: '{{ body.customer_id }}'
    consent: step.channel in body.agreed
    time_zone: '{{ body.time_zone }}'
    quiet_hours: {from: '21:00', to: '08:00'}
    frequency: [{max: 8, per: day}]
";
/// A customer who leaves one cart after the other, and what playbooks/cart-discount.yml allows him.
const NOISY: usize = 1_000_000;
const NOISY_CARTS: usize = 4;
const BUDGET: u64 = 5;
const ATTEMPTS: u64 = 3;
const SENDERS: usize = 16;
/// The partner refuses those below 10 in every hundred. They do not come first, or the circuit would open at once.
const FIRST: usize = 10;

fn carts() -> usize {
    std::env::var("CLINCH_TEST_CARTS").map_or(300, |carts| carts.parse().expect("CLINCH_TEST_CARTS is a number"))
}

/// A cart of a customer; the nth of them is left so many five minutes later.
fn cart(customer: usize, nth: usize, zone: &str) -> String {
    json!({
        "customer_id": format!("c-{customer}"), "store_id": 7, "timestamp": format!("2026-08-01T10:{:02}:00Z", 5 * nth),
        "email": format!("c-{customer}-{nth}@example.com"), "total": 120, "agreed": ["email"], "time_zone": zone,
    })
    .to_string()
}

/// Delivers each of them twice, every other one under another id, and all are taken.
async fn deliver(intake: &str, carts: Vec<(usize, usize)>) {
    let (zone, carts) = (zone_at(13), Arc::new(carts));
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let (carts, zone, shop, client) = (carts.clone(), zone.clone(), format!("{intake}/in/shop"), client());
        senders.spawn(async move {
            for (customer, nth) in carts.iter().skip(sender).step_by(SENDERS) {
                let body = cart(*customer, *nth, &zone);
                let signature = BASE64.encode(mac(SHOP.as_bytes(), &body).as_ref());
                for time in 0..2 {
                    let id = format!("{customer}-{nth}-{}", time * (customer % 2));
                    let request = client.post(&shop).header("x-shopify-hmac-sha256", &signature);
                    let request =
                        request.header("x-shopify-topic", "carts/abandoned").header("x-shopify-webhook-id", id);
                    assert_eq!(request.body(body.clone()).send().await.unwrap().status(), 202);
                }
            }
        });
    }
    while let Some(sender) = senders.join_next().await {
        sender.unwrap();
    }
}

fn each(customers: Range<usize>) -> Vec<(usize, usize)> {
    customers.map(|customer| (customer, 0)).collect()
}

fn unfinished(place: &Place) -> i64 {
    place.jobs("queued") + place.jobs("retrying")
}

fn held(place: &Place) -> i64 {
    let status = cli(place, &["safe-mode", "status"]);
    status["held"].as_array().unwrap().iter().map(|flow| flow["jobs"].as_i64().unwrap()).sum()
}

/// Calls for codes, by customer.
fn calls(seen: &Value) -> BTreeMap<String, u64> {
    serde_json::from_value(seen["calls"].clone()).unwrap()
}

/// How many there are, after it is sure that none is there twice.
fn once_each(list: &Value, what: impl Fn(&Value) -> String) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for one in list.as_array().unwrap() {
        *times.entry(what(one)).or_insert(0) += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "done twice: {twice:?}");
    times
}

fn dead(place: &Place, more: &[&str]) -> Vec<String> {
    let mut dead: Vec<String> = Vec::new();
    loop {
        let before = dead.last().cloned();
        let mut ask = [&["jobs", "ls", "--state", "dead", "--limit", "500"], more].concat();
        ask.extend(before.iter().flat_map(|id| ["--before", id]));
        let page = cli(place, &ask);
        let ids = page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_string());
        let known = dead.len();
        dead.extend(ids);
        if dead.len() == known {
            return dead;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_p8_e4_the_night_the_growth_agent_broke_ends_with_one_discount_and_one_mail_for_each_cart() {
    let customers = carts();
    let patience = PATIENCE + Duration::from_millis(60) * u32::try_from(customers).unwrap();
    let place = place("cart-recovery").await;
    place.write("policies.yml", POLICIES);
    let partners = Partners::start(&place.dir.path().join("workspace"), "partner.mjs");
    let server = place.start_with(&cart_recovery(&partners)).await;

    // It begins with some customers of whom the partner will not hear, and one of them comes again and again.
    partners.is_now("throttle/10").await;
    let (first, last, all) = (FIRST + customers / 3, FIRST + customers - 1, customers + NOISY_CARTS);
    deliver(&server.intake, each(FIRST..first)).await;
    deliver(&server.intake, (0..NOISY_CARTS).map(|nth| (NOISY, nth)).collect()).await;
    let refused = (FIRST..first).filter(|customer| customer % 100 < 10).count() + NOISY_CARTS;
    eventually("the refused give up, the others are served", patience, async || unfinished(&place) == 0).await;
    assert_eq!(dead(&place, &[]).len(), refused);
    let spent = calls(&partners.seen().await)[&format!("c-{NOISY}")];
    assert!(spent <= NOISY_CARTS as u64 + BUDGET, "one customer caused {spent} calls");
    assert!(!dead(&place, &["--reason", "budget_exhausted"]).is_empty());

    // Then it refuses everybody, slowly. Nobody has to turn anything off.
    partners.is_now("throttle/100").await;
    partners.is_now("slow/300").await;
    deliver(&server.intake, each(first..last)).await;
    eventually("safe mode is on", patience, async || {
        let on = cli(&place, &["safe-mode", "status"])["on"][0].clone();
        on["scope"] == "integration:codes" && on["reason"].as_str().unwrap().contains("circuit")
    })
    .await;
    eventually("all else is done", patience, async || unfinished(&place) == held(&place)).await;
    // One that asks again at this very moment is not counted among those that wait; it is not done either.
    let (at_rest, waiting) = (partners.seen().await, unfinished(&place));
    // A cart that comes now is accepted, its reminder goes out, and nobody calls.
    deliver(&server.intake, each(last..last + 1)).await;
    let reminders = |seen: &Value| {
        let mails = once_each(&seen["mails"], |mail| format!("{} to {}", mail["subject"], mail["to"]));
        let offers = mails.keys().filter(|mail| mail.contains("% off")).count();
        (mails.len() - offers, offers)
    };
    eventually("the last one is reminded", patience, async || reminders(&partners.seen().await).0 == all).await;
    eventually("and waits", patience, async || unfinished(&place) == waiting + 1 && held(&place) == waiting + 1).await;
    let seen = partners.seen().await;
    assert_eq!(calls(&seen), calls(&at_rest), "nobody calls in safe mode");
    for (customer, calls) in calls(&seen) {
        let most = if customer == format!("c-{NOISY}") { NOISY_CARTS as u64 + BUDGET } else { ATTEMPTS };
        assert!(calls <= most, "{customer}: {calls} calls");
    }
    let codes = once_each(&seen["codes"], |code| format!("{}/{}", code["customer"], code["cart"])).len();
    let given_up = dead(&place, &[]).len();
    assert_eq!(codes + given_up + usize::try_from(unfinished(&place)).unwrap(), all, "every discount is somewhere");

    // It is well again: what waited is let go, and what gave up is replayed.
    partners.is_now("well").await;
    cli(&place, &["safe-mode", "off", "--drain", "200/s"]);
    eventually("what waited is let go", patience, async || unfinished(&place) == 0).await;
    let letters = dead(&place, &[]);
    assert_eq!(letters.len(), given_up, "nobody gave up after it was well");
    for letter in &letters {
        cli(&place, &["replay", letter, "--reason", "they are well again"]);
    }
    eventually("replays end", patience, async || unfinished(&place) == 0).await;
    let lost = dead(&place, &[]).len();
    assert!((letters.len() - lost) * 100 >= letters.len() * 98, "{lost} of {} replays failed", letters.len());
    server.stop().await;
    place.verified();
    let seen = partners.seen().await;
    let codes = once_each(&seen["codes"], |code| format!("{}/{}", code["customer"], code["cart"])).len();
    assert_eq!((codes, reminders(&seen)), (all - lost, (all, all - lost)));
    let called: u64 = calls(&seen).values().sum();
    println!(
        "{all} carts, {called} calls for codes, {} waited, {} replayed, {lost} failed",
        waiting + 1,
        letters.len()
    );
}
