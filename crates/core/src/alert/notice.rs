//! A notice: what people read of alerts, in the words of the channel that carries it. One notice is about all that is to be said
//! at that moment.

use super::{Alert, Name, Rule, Severity, Unit, Word};
use crate::time::{Timestamp, human};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use data_encoding::{BASE64, HEXLOWER};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// One notice is about so many at most; the others are in the next.
pub const ITEMS_MAX: usize = 20;
/// PagerDuty takes no longer summary.
const SUMMARY_CHARS_MAX: usize = 1_024;

/// One alert, as it is told: with what to do first, and where to look.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub name: Name,
    pub word: Word,
    pub severity: Severity,
    pub labels: Vec<(String, String)>,
    pub value: f64,
    pub summary: &'static str,
    pub description: String,
    pub command: String,
    pub runbook: String,
    pub runbook_url: String,
    pub console_url: String,
    pub fired_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
}

impl Item {
    /// `None`: the rule was one of another clinch.
    pub fn of(alert: &Alert, word: Word, console: &str) -> Option<Item> {
        let rule = Rule::find(&alert.rule)?;
        let runbook = rule.runbook(|name| alert.label(name)).to_string();
        let base = console.trim_end_matches('/');
        Some(Item {
            name: alert.name(),
            word,
            severity: alert.severity,
            labels: alert.labels.clone(),
            value: alert.value,
            summary: rule.summary,
            description: filled(rule.description, alert, rule.unit, str::to_string),
            command: filled(rule.command, alert, rule.unit, str::to_string),
            runbook_url: format!("{base}/runbooks/{}", encoded(&runbook)),
            console_url: format!("{base}{}", filled(rule.page, alert, rule.unit, encoded)),
            runbook,
            fired_at: alert.fired_at,
            resolved_at: alert.resolved_at,
        })
    }

    fn lasted(&self) -> Duration {
        self.resolved_at.map_or(Duration::ZERO, |at| Duration::from_secs(at.since(self.fired_at).as_secs()))
    }

    /// `CRIT ClinchQueueStalled:orders`
    pub fn head(&self) -> String {
        let word = if self.word == Word::Resolved { "RESOLVED" } else { self.severity.short() };
        format!("{word} {}", self.name)
    }

    /// What is the matter, or how long it was.
    pub fn said(&self) -> String {
        match self.word {
            Word::Firing => self.description.clone(),
            Word::Resolved => format!("It is over; it lasted {}.", human(self.lasted())),
        }
    }

    fn json(&self) -> Value {
        let labels: BTreeMap<&str, &str> = self.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        json!({
            "name": self.name.to_string(), "rule": self.name.rule, "status": self.word.as_str(), "severity": self.severity.word(),
            "labels": labels, "value": self.value, "summary": self.summary, "description": self.said(),
            "command": self.command, "runbook": self.runbook, "runbook_url": self.runbook_url,
            "console_url": self.console_url, "fired_at": self.fired_at.to_string(),
            "resolved_at": self.resolved_at.map(|at| at.to_string()),
        })
    }
}

/// A text of a rule with the alert's labels, value and limit in it. What fits nowhere stays as it is.
fn filled(text: &str, alert: &Alert, unit: Unit, how: fn(&str) -> String) -> String {
    let mut text = text.replace("{value}", &unit.told(alert.value)).replace("{limit}", &unit.told(alert.limit));
    for (label, value) in &alert.labels {
        text = text.replace(&format!("{{{label}}}"), &how(value));
    }
    text
}

/// As a part of a URL that has no meaning of its own.
fn encoded(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// All that is to be said at one moment to one channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// The same whenever it is sent again.
    pub id: String,
    pub at: Timestamp,
    pub items: Vec<Item>,
}

impl Notice {
    pub fn new(channel: &str, items: Vec<Item>, at: Timestamp) -> Notice {
        let names: Vec<String> = items.iter().map(Item::head).collect();
        let digest = digest(&SHA256, format!("{channel}\n{}\n{}", at.as_micros(), names.join("\n")).as_bytes());
        Notice { id: format!("ntc_{}", HEXLOWER.encode(&digest.as_ref()[..12])), at, items }
    }

    /// For who wants to know whether a channel works.
    pub fn test(channel: &str, console: &str, at: Timestamp) -> Notice {
        let item = Item {
            name: Name { rule: "ClinchTest".into(), values: vec![channel.into()] },
            word: Word::Firing,
            severity: Severity::Info,
            labels: vec![("channel".into(), channel.into())],
            value: 0.0,
            summary: "This is a test.",
            description: format!("Somebody asked whether channel {channel} works. It does."),
            command: "clinch alerts ls".into(),
            runbook: "ClinchNotificationsFailing".into(),
            runbook_url: format!("{}/runbooks/ClinchNotificationsFailing", console.trim_end_matches('/')),
            console_url: format!("{}/alerts", console.trim_end_matches('/')),
            fired_at: at,
            resolved_at: None,
        };
        Notice::new(channel, vec![item], at)
    }

    /// One line: what it is about.
    pub fn subject(&self) -> String {
        if let [item] = &self.items[..] {
            return item.head();
        }
        let count = |word: Word| self.items.iter().filter(|item| item.word == word).count();
        let (firing, resolved) = (count(Word::Firing), count(Word::Resolved));
        match (firing, resolved) {
            (0, resolved) => format!("{resolved} alerts resolved"),
            (firing, 0) => format!("{firing} alerts"),
            (1, resolved) => format!("1 alert, {resolved} resolved"),
            (firing, resolved) => format!("{firing} alerts, {resolved} resolved"),
        }
    }

    /// For a mail.
    pub fn text(&self) -> String {
        let told = |item: &Item| {
            format!(
                "{}\n{}\nRunbook: {}\nConsole: {}\nFirst:   {}\nSince:   {}\n",
                item.head(),
                item.said(),
                item.runbook_url,
                item.console_url,
                item.command,
                item.fired_at
            )
        };
        self.items.iter().map(told).collect::<Vec<_>>().join("\n")
    }

    /// A message of Slack.
    pub fn slack(&self) -> Value {
        let told = |item: &Item| {
            let text = format!(
                "*{}*  {}\n<{}|Runbook>  <{}|Console>\nFirst: `{}`",
                plain(&item.head()),
                plain(&item.said()),
                item.runbook_url,
                item.console_url,
                plain(&item.command)
            );
            json!({ "type": "section", "text": { "type": "mrkdwn", "text": text } })
        };
        json!({ "text": plain(&self.subject()), "blocks": self.items.iter().map(told).collect::<Vec<_>>() })
    }

    /// For a webhook.
    pub fn json(&self) -> Value {
        let items: Vec<Value> = self.items.iter().map(Item::json).collect();
        json!({ "schema": "clinch.alerts.notice/v1", "id": self.id, "at": self.at.to_string(), "alerts": items })
    }

    /// The events of PagerDuty, one for each alert. Those of one alert have one key: what lasts is one incident, and its end
    /// ends it.
    pub fn pagerduty(&self, routing_key: &str, console: &str) -> Vec<Value> {
        let event = |item: &Item| {
            let summary: String = format!("{}: {}", item.head(), item.said()).chars().take(SUMMARY_CHARS_MAX).collect();
            let details: BTreeMap<&str, &str> = item.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            json!({
                "routing_key": routing_key,
                "event_action": if item.word == Word::Resolved { "resolve" } else { "trigger" },
                "dedup_key": format!("{}/{}", console.trim_end_matches('/'), item.name),
                "client": "clinch",
                "client_url": item.console_url,
                "payload": {
                    "summary": summary, "source": console, "severity": item.severity.word(),
                    "timestamp": item.fired_at.to_string(), "class": item.name.rule, "group": "clinch",
                    "custom_details": { "labels": details, "first_command": item.command, "summary": item.summary },
                },
                "links": [
                    { "href": item.runbook_url, "text": "Runbook" },
                    { "href": item.console_url, "text": "Console" },
                ],
            })
        };
        self.items.iter().map(event).collect()
    }
}

/// What Slack would read as markup is text.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('`', "'")
}

/// The headers of Standard Webhooks for a body, signed with this key.
pub fn signed(id: &str, at: Timestamp, body: &[u8], key: &[u8]) -> [(&'static str, String); 3] {
    let seconds = at.as_micros().div_euclid(1_000_000);
    let mut content = format!("{id}.{seconds}.").into_bytes();
    content.extend_from_slice(body);
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &content);
    [
        ("webhook-id", id.to_string()),
        ("webhook-timestamp", seconds.to_string()),
        ("webhook-signature", format!("v1,{}", BASE64.encode(tag.as_ref()))),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, after, alert};
    use super::*;

    const CONSOLE: &str = "https://clinch.example.com/";

    fn item(rule: &str, values: &[&str], word: Word) -> Item {
        let mut alert = alert(rule, values);
        alert.value = 842.0;
        alert.resolved_at = (word == Word::Resolved).then_some(after(75));
        Item::of(&alert, word, CONSOLE).expect("the rule is known")
    }

    #[test]
    fn h4_a_notice_has_the_runbook_the_console_and_the_first_command() {
        let stalled = item("ClinchQueueStalled", &["lead-sync"], Word::Firing);
        let notice = Notice::new("ops", vec![stalled], NOW);
        assert_eq!(notice.subject(), "CRIT ClinchQueueStalled:lead-sync");
        assert_eq!(
            notice.text(),
            "CRIT ClinchQueueStalled:lead-sync\n\
             Flow lead-sync has jobs that wait for their turn, and none got it for 14m2s, limit 5m.\n\
             Runbook: https://clinch.example.com/runbooks/ClinchQueueStalled\n\
             Console: https://clinch.example.com/jobs?q=flow:lead-sync+state:queued\n\
             First:   clinch jobs ls flow:lead-sync state:queued\n\
             Since:   2026-09-21T14:13:20.000Z\n"
        );
        let slack = notice.slack();
        assert_eq!(
            slack["blocks"][0]["text"]["text"],
            "*CRIT ClinchQueueStalled:lead-sync*  Flow lead-sync has jobs that wait for their turn, and none got it for 14m2s, \
             limit 5m.\n<https://clinch.example.com/runbooks/ClinchQueueStalled|Runbook>  \
             <https://clinch.example.com/jobs?q=flow:lead-sync+state:queued|Console>\n\
             First: `clinch jobs ls flow:lead-sync state:queued`"
        );
        let json = notice.json();
        assert_eq!(json["alerts"][0]["runbook_url"], "https://clinch.example.com/runbooks/ClinchQueueStalled");
        assert_eq!(
            (&json["alerts"][0]["status"], &json["alerts"][0]["labels"]["flow"]),
            (&json!("firing"), &json!("lead-sync"))
        );
    }

    #[test]
    fn h4_one_notice_is_about_all_that_is_to_be_said() {
        let items = vec![
            item("ClinchCircuitOpen", &["crm"], Word::Firing),
            item("ClinchCircuitOpen", &["mail"], Word::Firing),
            item("ClinchErrorRate", &["sms"], Word::Resolved),
        ];
        let notice = Notice::new("ops", items, NOW);
        assert_eq!(notice.subject(), "2 alerts, 1 resolved");
        assert_eq!(notice.slack()["blocks"].as_array().map(Vec::len), Some(3));
        assert!(notice.text().contains("RESOLVED ClinchErrorRate:sms\nIt is over; it lasted 1m15s.\n"));
        assert_ne!(notice.id, Notice::new("mail", notice.items.clone(), NOW).id);
    }

    #[test]
    fn h4_pagerduty_gets_one_incident_for_an_alert_and_its_end() {
        let firing = Notice::new("pager", vec![item("ClinchCircuitOpen", &["crm"], Word::Firing)], NOW);
        let over = Notice::new("pager", vec![item("ClinchCircuitOpen", &["crm"], Word::Resolved)], after(75));
        let (began, ended) = (&firing.pagerduty("key", CONSOLE)[0], &over.pagerduty("key", CONSOLE)[0]);
        assert_eq!((&began["event_action"], &ended["event_action"]), (&json!("trigger"), &json!("resolve")));
        assert_eq!(began["dedup_key"], ended["dedup_key"]);
        assert_eq!(
            began["links"][0],
            json!({"href": "https://clinch.example.com/runbooks/ClinchCircuitOpen", "text": "Runbook"})
        );
        assert_eq!(began["payload"]["severity"], "warning");
    }

    #[test]
    fn h4_dead_letters_link_to_the_page_of_their_reason() {
        let growing = item("ClinchDeadLettersGrowing", &["orders", "auth_failed"], Word::Firing);
        assert_eq!(growing.runbook_url, "https://clinch.example.com/runbooks/auth_failed");
        assert_eq!(growing.command, "clinch dlq shapes --flow orders --reason auth_failed");
    }

    #[test]
    fn h4_nothing_in_a_notice_is_markup() {
        let odd = item("ClinchCircuitOpen", &["<!channel> & `x`"], Word::Firing);
        let text = Notice::new("ops", vec![odd], NOW).slack().to_string();
        assert!(!text.contains("<!channel>") && text.contains("&lt;!channel&gt; &amp; 'x'"), "{text}");
    }

    #[test]
    fn h4_a_signature_is_what_standard_webhooks_says() {
        let key = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("base64");
        let at = Timestamp::from_micros(1_614_265_330_000_000);
        let [(_, id), (_, seconds), (_, signature)] =
            signed("msg_p5jXN8AQM9LWM0D4loKWxJek", at, br#"{"test": 2432232314}"#, &key);
        assert_eq!((id.as_str(), seconds.as_str()), ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330"));
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
