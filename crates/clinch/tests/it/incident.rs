//! The night the cart recovery broke, once more: whoever makes the codes throttles, loses answers and slows down, every webhook comes
//! twice, and the server is killed. The example's own workspace goes through it; `CLINCH_TEST_CARTS=10000` makes it as big as
//! it was.

use crate::examples::{Partners, SHOP, cart_recovery, cli, furnish};
use crate::nodes::{Nodes, shared_postgres};
use crate::policies::zone_at;
use crate::process::{PATIENCE, Place, Server, client, eventually};
use crate::sources::mac;
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
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
/// Carts are left one after the other, 80 a second at most. Were all of them there at once, those who are refused would be called for
/// again after everybody else, among themselves, and open the circuit.
const BETWEEN_CARTS: Duration = Duration::from_millis(200);
/// Of a hundred customers the partner refuses those below, and loses its answers to so many at the end. The refused do not come
/// first, or the circuit would open at once.
const REFUSED: usize = 10;
const LOST: usize = 1;
const FIRST: usize = REFUSED;
/// Mails and calls that can be on their way at the moment of a kill. What became of a mail nobody but a person can say; a code may be
/// asked for again.
const MAILS_AT_ONCE: usize = 8;
const CALLS_AT_ONCE: usize = 8;
/// Between two looks: the store has other things to do.
const TICK: Duration = Duration::from_millis(100);

/// One cart: whose, and which of his.
type Cart = (usize, usize);

/// A cart of a customer; the nth of them is left so many five minutes later.
fn cart((customer, nth): Cart, zone: &str) -> String {
    json!({
        "customer_id": format!("c-{customer}"), "store_id": 7, "timestamp": format!("2026-08-01T10:{:02}:00Z", 5 * nth),
        "email": format!("c-{customer}-{nth}@example.com"), "total": 120, "agreed": ["email"], "time_zone": zone,
    })
    .to_string()
}

fn each(customers: Range<usize>) -> Vec<Cart> {
    customers.map(|customer| (customer, 0)).collect()
}

/// The example, on either store, with its stand-ins.
struct Night {
    place: Place,
    nodes_url: Option<String>,
    partners: Partners,
    server: Server,
    intake: Arc<Mutex<String>>,
    patience: Duration,
}

impl Night {
    async fn begins(customers: usize, on_postgres: bool) -> Night {
        let (place, nodes_url) = match on_postgres {
            true => {
                let nodes = Nodes::on(shared_postgres(), &[]).await;
                (nodes.place, Some(nodes.url))
            }
            false => (Place::new(&[]).await, None),
        };
        let settings = place.dir.path().join("workspace/clinch.yml");
        let of_nodes = std::fs::read_to_string(&settings).unwrap_or_default();
        furnish(&place, "cart-recovery");
        // Nobody wants to wait ten seconds for each lost answer; and on a busy machine the others come late.
        let example = std::fs::read_to_string(&settings).unwrap();
        assert!(example.contains("timeout: 10s"));
        place.write("clinch.yml", &format!("{}{of_nodes}", example.replace("timeout: 10s", "timeout: 5s")));
        place.write("policies.yml", POLICIES);
        let partners = Partners::start(&place.dir.path().join("workspace"), "partner.mjs");
        let server = start(&place, nodes_url.as_deref(), &partners).await;
        let intake = Arc::new(Mutex::new(server.intake.clone()));
        let patience = 2 * PATIENCE + Duration::from_millis(100) * u32::try_from(customers).unwrap();
        Night { place, nodes_url, partners, server, intake, patience }
    }

    async fn killed_and_started(&mut self) {
        self.server.kill9();
        self.server = start(&self.place, self.nodes_url.as_deref(), &self.partners).await;
        self.intake.lock().unwrap().clone_from(&self.server.intake);
    }

    /// Ends it in good order, with books that add up.
    async fn ends(self) -> Partners {
        self.server.stop().await;
        match self.nodes_url {
            None => drop(self.place.verified()),
            Some(url) => drop(Nodes { place: self.place, url }.verified()),
        }
        self.partners
    }

    /// Delivers each of them twice, every other one under another id, until they are taken.
    fn deliver(&self, carts: Vec<Cart>) -> JoinSet<()> {
        let (zone, carts) = (zone_at(13), Arc::new(carts));
        let mut senders = JoinSet::new();
        for sender in 0..SENDERS {
            let (carts, zone, intake, client) = (carts.clone(), zone.clone(), self.intake.clone(), client());
            senders.spawn(async move {
                let mut pace = tokio::time::interval(BETWEEN_CARTS);
                for cart in carts.iter().skip(sender).step_by(SENDERS) {
                    pace.tick().await;
                    let (body, (customer, nth)) = (self::cart(*cart, &zone), cart);
                    let signature = BASE64.encode(mac(SHOP.as_bytes(), &body).as_ref());
                    for time in 0..2 {
                        let id = format!("{customer}-{nth}-{}", time * (customer % 2));
                        loop {
                            let shop = format!("{}/in/shop", intake.lock().unwrap());
                            let request = client.post(shop).header("x-shopify-hmac-sha256", &signature);
                            let request = request.header("x-shopify-topic", "carts/abandoned");
                            match request.header("x-shopify-webhook-id", &id).body(body.clone()).send().await {
                                Ok(answer) => break assert_eq!(answer.status(), 202),
                                // It was killed. A shop sends again what it is not sure of.
                                Err(_) => tokio::time::sleep(TICK).await,
                            }
                        }
                    }
                }
            });
        }
        senders
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        eventually(what, self.patience, async || {
            is_so().await || {
                tokio::time::sleep(TICK).await;
                false
            }
        })
        .await;
    }

    /// Jobs that have not ended, and those of them that wait in safe mode.
    async fn unfinished(&self) -> (usize, usize) {
        let metrics =
            client().get(format!("{}/metrics", self.server.admin)).send().await.unwrap().text().await.unwrap();
        let sum = |name: &str, of: &str| -> usize {
            let lines = metrics.lines().filter(|line| line.starts_with(name) && line.contains(of));
            lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
        };
        (sum("clinch_jobs{", ""), sum("clinch_jobs_waiting{", "why=\"safe_mode\""))
    }

    async fn all_end(&self, what: &str) {
        self.until(what, async || self.unfinished().await.0 == 0).await;
    }

    /// The dead letters, by why.
    fn dead(&self) -> BTreeMap<String, usize> {
        let groups = cli(&self.place, &["dlq", "groups"]);
        let mut dead = BTreeMap::new();
        for group in groups["groups"].as_array().unwrap() {
            *dead.entry(group["reason"].as_str().unwrap().into()).or_insert(0) +=
                group["jobs"].as_u64().unwrap() as usize;
        }
        dead
    }
}

async fn start(place: &Place, nodes_url: Option<&str>, partners: &Partners) -> Server {
    let args: Vec<&str> = nodes_url.into_iter().flat_map(|url| ["--store", url]).collect();
    let mut server = place.launch(&place.data_dir, &args, &cart_recovery(partners));
    server.opened().await;
    server
}

/// What the partner and the mail server have seen, after it is sure that they have seen nothing twice.
struct Seen {
    codes: BTreeSet<String>,
    reminders: BTreeSet<String>,
    offers: BTreeSet<String>,
    /// Calls for codes, by customer.
    calls: BTreeMap<String, u64>,
}

impl Seen {
    async fn by(partners: &Partners) -> Seen {
        let seen = partners.seen().await;
        let mails = once_each(&seen["mails"], |mail| format!("{} to {}", mail["subject"], mail["to"]));
        let (offers, reminders) = mails.into_iter().partition(|mail| mail.contains("% off"));
        let codes = once_each(&seen["codes"], |code| format!("{}/{}", code["customer"], code["cart"]));
        let calls = serde_json::from_value(seen["calls"].clone()).unwrap();
        let seen = Seen { codes, reminders, offers, calls };
        for (customer, calls) in &seen.calls {
            // Its first attempts cost nothing; one after a replay is another first one.
            let most = if *customer == format!("c-{NOISY}") { 2 * NOISY_CARTS as u64 + BUDGET } else { ATTEMPTS + 1 };
            assert!(*calls <= most, "{customer}: {calls} calls");
        }
        seen
    }
}

fn once_each(list: &Value, what: impl Fn(&Value) -> String) -> BTreeSet<String> {
    let mut times = BTreeMap::new();
    for one in list.as_array().unwrap() {
        *times.entry(what(one)).or_insert(0) += 1;
    }
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "done twice: {twice:?}");
    times.into_keys().collect()
}

async fn relived(customers: usize, on_postgres: bool) {
    let mut night = Night::begins(customers, on_postgres).await;
    let began = Instant::now();
    let mut phases = Vec::new();
    let mut phase = |what: &'static str| phases.push(format!("{what} at {:.0?}", began.elapsed()));

    // It begins with some customers of whom the partner will not hear, and some who never get its answer. In the middle of it the
    // server is killed.
    night.partners.is_now(&format!("throttle/{REFUSED}")).await;
    night.partners.is_now(&format!("lose/{LOST}")).await;
    let (half, last, all) = (FIRST + customers / 2, FIRST + customers - 1, customers + NOISY_CARTS);
    let senders = night.deliver(each(FIRST..half));
    night.until("some are served", async || Seen::by(&night.partners).await.codes.len() > customers / 8).await;
    night.killed_and_started().await;
    phase("killed");
    night.deliver((0..NOISY_CARTS).map(|nth| (NOISY, nth)).collect()).join_all().await;
    senders.join_all().await;
    night
        .until("the refused give up, the others are served", async || {
            let (unfinished, held) = night.unfinished().await;
            // On a slow machine only the refused may be left in the end, and open the circuit. Then somebody lets them go on.
            if held > 0 && unfinished == held {
                cli(&night.place, &["safe-mode", "off", "--drain", "200/s"]);
            }
            unfinished == 0
        })
        .await;
    phase("the first half served");
    let dead = night.dead();
    let of = |dead: &BTreeMap<String, usize>, reason: &str| dead.get(reason).copied().unwrap_or(0);
    let in_hundred =
        |from: usize, to: usize| (FIRST..half).filter(|customer| (from..to).contains(&(customer % 100))).count();
    let (refused, lost) = (in_hundred(0, REFUSED), in_hundred(100 - LOST, 100));
    assert_eq!(of(&dead, "rate_limited") + of(&dead, "budget_exhausted"), refused + NOISY_CARTS, "{dead:?}");
    assert!(of(&dead, "budget_exhausted") > 0, "{dead:?}");
    // One whose last call was on its way at the kill is in doubt, too.
    let in_doubt = of(&dead, "unknown_outcome");
    assert!(of(&dead, "timeout") <= lost && of(&dead, "timeout") + in_doubt >= lost, "{dead:?}");
    assert!(in_doubt <= MAILS_AT_ONCE + CALLS_AT_ONCE, "{dead:?}");
    let spent = Seen::by(&night.partners).await.calls[&format!("c-{NOISY}")];
    assert!(spent <= NOISY_CARTS as u64 + BUDGET, "one customer caused {spent} calls");

    // Then it refuses everybody, slowly. Nobody has to turn anything off.
    night.partners.is_now("throttle/100").await;
    night.partners.is_now("slow/300").await;
    night.deliver(each(half..last)).join_all().await;
    night
        .until("safe mode is on", async || {
            let on = cli(&night.place, &["safe-mode", "status"])["on"][0].clone();
            on["scope"] == "integration:codes" && on["reason"].as_str().unwrap().contains("circuit")
        })
        .await;
    // Counts may be those of a second ago, when none of these carts was there: each of them has given up, or is held.
    let (before, carts) = (dead.values().sum::<usize>(), last - half);
    night
        .until("all else is done", async || {
            let (unfinished, held) = night.unfinished().await;
            unfinished == held && held + night.dead().values().sum::<usize>() == before + carts
        })
        .await;
    phase("safe mode, all else done");
    let (at_rest, waiting) = (Seen::by(&night.partners).await, night.unfinished().await.0);
    // A cart that comes now is accepted, its reminder goes out, and nobody calls.
    night.deliver(each(last..last + 1)).join_all().await;
    let reminder = format!("c-{last}-0@");
    let reminded = async || Seen::by(&night.partners).await.reminders.iter().any(|mail| mail.contains(&reminder));
    night.until("its reminder goes out", reminded).await;
    // Here, too: what is asked is not how many there are, but that all of them wait.
    night
        .until("and waits", async || {
            let (unfinished, held) = night.unfinished().await;
            held > 0 && unfinished == held
        })
        .await;
    let seen = Seen::by(&night.partners).await;
    assert_eq!(seen.calls, at_rest.calls, "nobody calls in safe mode");

    // It is well again: what waited is let go, and the server is killed while it is.
    let dead = night.dead();
    night.partners.is_now("well").await;
    cli(&night.place, &["safe-mode", "off", "--drain", "200/s"]);
    let third = seen.codes.len() + waiting / 3;
    night.until("a third is let go", async || Seen::by(&night.partners).await.codes.len() > third).await;
    night.killed_and_started().await;
    phase("killed while it drains");
    night.all_end("what waited is let go").await;
    phase("drained");
    let given_up = night.dead();
    let but_in_doubt = |dead: &BTreeMap<String, usize>| dead.values().sum::<usize>() - of(dead, "unknown_outcome");
    assert_eq!(but_in_doubt(&given_up), but_in_doubt(&dead), "nobody gave up after it was well: {given_up:?}");

    // What gave up is replayed, all of it by one plan. Of a mail that was on its way at a kill only a person can say what became.
    let plan = cli(&night.place, &["replay", "plan", "queue:playbook.cart-discount"])["plan"].clone();
    let id = plan["id"].as_str().unwrap();
    cli(&night.place, &["replay", "apply", id, "--reason", "they are well again", "--rate", "200/s", "--detach"]);
    let mut ended = json!(null);
    night
        .until("the plan ends", async || {
            ended = cli(&night.place, &["replay", "show", id])["plan"].clone();
            ended["state"] != "running"
        })
        .await;
    phase("replayed");
    let number = |name: &str| ended[name].as_u64().unwrap() as usize;
    let (replayed, succeeded) = (number("released"), number("success"));
    assert_eq!((replayed, &ended["state"]), (number("jobs") - number("ask_first"), &json!("done")), "{ended}");
    assert!(replayed >= but_in_doubt(&given_up), "{ended} of {given_up:?}");
    assert!(succeeded * 100 >= replayed * 98, "{ended}");
    let (dead, patience) = (night.dead(), night.patience);
    let in_doubt = of(&dead, "unknown_outcome");
    assert_eq!(dead.values().sum::<usize>(), replayed - succeeded + in_doubt, "{dead:?}");
    assert!(in_doubt <= 2 * MAILS_AT_ONCE, "{dead:?}");
    let partners = night.ends().await;
    let seen = Seen::by(&partners).await;
    assert_eq!(seen.codes.len(), all - (replayed - succeeded));
    let missing = 2 * all - seen.reminders.len() - seen.offers.len();
    assert!(missing <= replayed - succeeded + in_doubt, "{missing} mails are missing");
    let calls: u64 = seen.calls.values().sum();
    println!(
        "{all} carts in {:.0?} (of {patience:.0?}): {} codes, {} reminders, {} offers, none twice; {calls} calls for codes; \
         {} waited in safe mode; {succeeded} of {replayed} replays succeeded; {in_doubt} mails in doubt after two kills; {}",
        began.elapsed(),
        seen.codes.len(),
        seen.reminders.len(),
        seen.offers.len(),
        waiting + 1,
        phases.join(", "),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_p8_e4_the_night_the_growth_agent_broke_ends_with_one_discount_and_one_mail_for_each_cart() {
    let carts = std::env::var("CLINCH_TEST_CARTS").map_or(300, |carts| carts.parse().expect("it is a number"));
    relived(carts, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_p8_e4_the_same_night_on_postgresql() {
    relived(60, true).await;
}
