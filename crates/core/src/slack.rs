//! Slack, where people decide: the message with buttons for many approvals at once, and what somebody pressed.

use crate::approval::{ApprovalId, Card, Tally, Vote};
use crate::form;
use crate::time::Timestamp;
use serde_json::{Value, json};

/// As many approvals are in one message: Slack takes 50 blocks.
pub const ITEMS_MAX: usize = 20;
/// Slack takes no longer value of a button.
const VALUE_BYTES_MAX: usize = 2_000;
const APPROVE: &str = "clinch_approve";
const REJECT: &str = "clinch_reject";

/// One approval of a message.
#[derive(Clone, Debug)]
pub struct Item {
    pub id: ApprovalId,
    pub card: Card,
    pub tally: Tally,
    pub expires_at: Timestamp,
    /// People were told of it before.
    pub is_reminder: bool,
}

/// The message that asks about all of these.
pub fn message(channel: &str, items: &[Item]) -> Value {
    let reminders = items.iter().filter(|item| item.is_reminder).count();
    let head = match (items.len(), reminders) {
        (1, 0) => "1 approval is asked for".to_string(),
        (1, _) => "1 approval expires soon".to_string(),
        (all, reminders) if reminders == all => format!("{all} approvals expire soon"),
        (all, _) => format!("{all} approvals are asked for"),
    };
    let mut blocks = vec![section(&format!("*{head}*"))];
    for item in items {
        blocks.push(section(&told(item)));
        blocks.push(buttons(&item.id.to_string(), ("Approve", "Reject"), None));
    }
    let all: Vec<String> = items.iter().map(|item| item.id.to_string()).collect();
    let all = all.join(" ");
    if items.len() > 1 && all.len() <= VALUE_BYTES_MAX {
        let labels = (format!("Approve all {}", items.len()), format!("Reject all {}", items.len()));
        blocks.push(json!({ "type": "divider" }));
        blocks.push(buttons(&all, (&labels.0, &labels.1), Some(items.len())));
    }
    json!({ "channel": channel, "text": head, "blocks": blocks })
}

fn section(text: &str) -> Value {
    json!({ "type": "section", "text": { "type": "mrkdwn", "text": text } })
}

fn told(item: &Item) -> String {
    let mut text = format!("*{}*", escaped(&item.card.title));
    for (name, value) in &item.card.facts {
        text.push_str(&format!("\n{}: {}", escaped(name), escaped(value)));
    }
    if item.tally.need > 1 {
        text.push_str(&format!("\n{}", item.tally));
    }
    let reminder = if item.is_reminder { "Reminder: " } else { "" };
    text.push_str(&format!("\n_{reminder}until {}_ `{}`", item.expires_at, item.id));
    text
}

fn buttons(value: &str, (approve, reject): (&str, &str), all: Option<usize>) -> Value {
    let button = |label: &str, action: &str, style: &str| {
        let mut button = json!({
            "type": "button", "action_id": action, "style": style, "value": value,
            "text": { "type": "plain_text", "text": label },
        });
        if all.is_some() {
            button["confirm"] = json!({
                "title": { "type": "plain_text", "text": label },
                "text": { "type": "plain_text", "text": "This decides every approval of this message." },
                "confirm": { "type": "plain_text", "text": "Yes" },
                "deny": { "type": "plain_text", "text": "No" },
            });
        }
        button
    };
    let elements = [button(approve, APPROVE, "primary"), button(reject, REJECT, "danger")];
    json!({ "type": "actions", "elements": elements })
}

/// What Slack would read as markup or as somebody's name is text.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(['*', '_', '`', '~'], " ")
}

/// What somebody pressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pressed {
    /// The id of the Slack user.
    pub user: String,
    pub vote: Vote,
    /// Never empty.
    pub approvals: Vec<ApprovalId>,
    /// Where the one who pressed is answered.
    pub response_url: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPressed {
    #[error("the request has no `payload`")]
    NoPayload,
    #[error("`payload` is not JSON")]
    NotJson,
    #[error("it says nobody pressed a button")]
    NoUser,
    /// A button of somebody else's message, or another kind of action: nothing to do.
    #[error("no button of ours was pressed")]
    NotOurs,
}

/// The body of a request that was proven to be Slack's.
pub fn pressed(body: &[u8]) -> Result<Pressed, NotPressed> {
    let payload = form::raw_fields(body).find(|field| &*field.name() == "payload").ok_or(NotPressed::NoPayload)?;
    let payload: Value = serde_json::from_slice(&payload.value()).map_err(|_| NotPressed::NotJson)?;
    let text = |pointer: &str| payload.pointer(pointer).and_then(Value::as_str);
    let user = text("/user/id").ok_or(NotPressed::NoUser)?.to_string();
    let vote = match text("/actions/0/action_id") {
        Some(APPROVE) => Vote::Approve,
        Some(REJECT) => Vote::Reject,
        _ => return Err(NotPressed::NotOurs),
    };
    let ids = text("/actions/0/value").unwrap_or_default().split(' ').take(ITEMS_MAX);
    let approvals: Vec<ApprovalId> = ids.map(str::parse).collect::<Result<_, _>>().map_err(|_| NotPressed::NotOurs)?;
    Ok(Pressed { user, vote, approvals, response_url: text("/response_url").map(str::to_string) })
}

/// What only the one who pressed sees.
pub fn answer(text: &str) -> Value {
    json!({ "response_type": "ephemeral", "replace_original": false, "text": text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;

    fn item(nth: u64) -> Item {
        Item {
            id: ApprovalId { job: JobId::from_number(nth), step: "review".into() },
            card: Card { title: format!("Discount <{nth}> & more"), facts: vec![("to".into(), "*all*".into())] },
            tally: Tally { have: 1, need: 2 },
            expires_at: Timestamp::from_micros(0),
            is_reminder: nth.is_multiple_of(2),
        }
    }

    fn posted(payload: &Value) -> Vec<u8> {
        let encode = |byte: u8| format!("%{byte:02X}");
        format!("payload={}", payload.to_string().bytes().map(encode).collect::<String>()).into_bytes()
    }

    #[test]
    fn g2_many_approvals_are_one_message_that_slack_takes() {
        let items: Vec<Item> = (0..ITEMS_MAX as u64).map(item).collect();
        let message = message("C1", &items);
        let blocks = message["blocks"].as_array().expect("blocks");
        assert!(blocks.len() <= 50, "{}", blocks.len());
        assert_eq!((&message["channel"], &message["text"]), (&json!("C1"), &json!("20 approvals are asked for")));
        assert!(blocks.iter().flat_map(|block| block["elements"].as_array()).flatten().all(|button| {
            button["value"].as_str().is_some_and(|value| value.len() <= VALUE_BYTES_MAX && !value.is_empty())
        }));
        let text = blocks[1]["text"]["text"].as_str().expect("a text");
        assert!(
            text.contains("Discount &lt;0&gt; &amp; more") && text.contains("to:  all ") && text.contains("1 of 2"),
            "{text}"
        );
        assert!(text.contains("Reminder: until 1970") && text.contains("`job_0000000000000/review`"), "{text}");
    }

    #[test]
    fn g2_one_approval_has_its_own_buttons_and_none_for_all() {
        let message = message("C1", &[item(1)]);
        assert_eq!(message["blocks"].as_array().expect("blocks").len(), 3);
        assert_eq!(message["text"], "1 approval is asked for");
    }

    #[test]
    fn g2_what_is_in_a_button_comes_back_when_it_is_pressed() {
        let message = message("C1", &[item(1), item(2)]);
        let blocks = message["blocks"].as_array().expect("blocks");
        let press = |button: &Value| {
            let action = json!({ "action_id": button["action_id"], "value": button["value"] });
            pressed(&posted(&json!({"type": "block_actions", "user": {"id": "U1"}, "actions": [action],
                                    "response_url": "https://hooks.slack.com/x"})))
        };
        let one = press(&blocks[2]["elements"][1]).expect("ours");
        assert_eq!((one.user.as_str(), one.vote, one.approvals.as_slice()), ("U1", Vote::Reject, &[item(1).id][..]));
        assert_eq!(one.response_url.as_deref(), Some("https://hooks.slack.com/x"));
        let all = press(&blocks.last().expect("one")["elements"][0]).expect("ours");
        assert_eq!((all.vote, all.approvals), (Vote::Approve, vec![item(1).id, item(2).id]));
    }

    #[test]
    fn g2_what_is_not_a_button_of_ours_does_nothing() {
        assert_eq!(pressed(b"x=1"), Err(NotPressed::NoPayload));
        assert_eq!(pressed(b"payload=%7B"), Err(NotPressed::NotJson));
        assert_eq!(pressed(&posted(&json!({}))), Err(NotPressed::NoUser));
        for action in [json!({}), json!({"action_id": "other"}), json!({"action_id": APPROVE, "value": "x"})] {
            let body = posted(&json!({"user": {"id": "U1"}, "actions": [action]}));
            assert_eq!(pressed(&body), Err(NotPressed::NotOurs));
        }
    }
}
