//! `send_template:` a message, as a template of the workspace writes it, by mail, Slack or a request.
//!
//! ```yaml
//! - name: remind
//!   send_template:
//!     integration: mail             # integrations: {mail: {smtp: "smtp://…", from: "Shop <hello@example.com>"}}
//!     template: cart                # templates/cart.txt and templates/cart.html
//!     to: "{{ body.email }}"
//!     with: {name: "{{ body.first }}"}
//! ```

use super::http::{header_name, question, text, uri, with_headers};
use super::{Outward, bad_payload};
use crate::effects::{Act, HttpCall, MailCall, Outgoing, Question, Server, SlackCall};
use crate::house::House;
use crate::worker::scope::Scope;
use clinch_core::attempt::Failure;
use clinch_core::config;
use clinch_core::death::Reason;
use clinch_core::expr::{BadExpr, Template};
use clinch_core::integration::{Integration, Promise};
use clinch_core::key::{IdempotencyKey, Pepper};
use clinch_core::message::{Channel, MailServer, Mailbox, Message, MessageBody, MessageRequest};
use clinch_core::payload::Payload;
use clinch_core::safe_mode::Sending;
use clinch_core::scope;
use clinch_core::worker::SendAction;
use clinch_store::Claim;
use http::{HeaderMap, HeaderValue, Method};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox as Headed, MultiPart, SinglePart};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const SLACK: &str = "https://slack.com";

impl Outward for SendAction {
    fn partner(&self) -> &Arc<Integration> {
        &self.partner
    }

    fn promise(&self) -> &Promise {
        &self.promise
    }

    fn plan(&self, step: &str, claim: &Claim, _: &Payload, scope: &mut Scope<'_>) -> Result<Box<dyn Act>, Failure> {
        let to = text(&self.to, scope)?;
        if to.trim().is_empty() {
            return Err(bad_payload("it is for nobody: `to` is empty"));
        }
        let name = template(self, claim, scope);
        // A safer one may be younger than the workspace that the job was accepted with.
        let live = scope.house().versions.workspace();
        let Some(written) = scope.workspace().template(&name).or_else(|| live.template(&name)) else {
            let why = format!("there is no template `{name}`");
            return Err(Failure::new(Reason::ConfigError, why));
        };
        let mut names = scope.names().clone();
        names.insert("with", self.with.value(scope.names())?);
        let message = written.write(&names)?;
        let key = IdempotencyKey::of(claim.lease.job, step);
        match &self.channel {
            Channel::Mail(server) => Ok(Box::new(mail(self, server, &to, message, &key, scope)?)),
            Channel::Slack => Ok(Box::new(SlackCall(slack(self, to, message, scope)?))),
            Channel::Request(channel) => Ok(Box::new(request(self, channel, &to, message, key, names, scope)?)),
        }
    }

    fn outgoing(&self, claim: &Claim, payload: &Payload, scope: &mut Scope<'_>) -> Result<Outgoing, Failure> {
        let contact = Outgoing::contact(scope.house(), &payload.about.tenant, &text(&self.to, scope)?);
        Ok(Outgoing::Message { template: template(self, claim, scope), contact })
    }

    fn question(&self, scope: &mut Scope<'_>) -> Option<Result<Question, BadExpr>> {
        let lookup = self.promise.lookup.as_deref()?;
        Some(question(lookup, &self.partner, self.timeout, self.partner.propagate_trace, scope))
    }
}

/// What it is written with: in safe mode, what the workspace says instead.
fn template(action: &SendAction, claim: &Claim, scope: &Scope<'_>) -> Arc<str> {
    let house = scope.house();
    let sending = Sending { queue: &claim.queue, flow: &claim.flow, integration: &action.partner.name };
    let is_safe = scope.controls().safe_mode(sending, house.clock.now()).is_some();
    let rule = &house.versions.workspace().settings.safe_mode;
    if is_safe { rule.template(&action.template).into() } else { action.template.as_str().into() }
}

fn mail(
    action: &SendAction,
    server: &MailServer,
    to: &str,
    message: Message,
    key: &IdempotencyKey,
    scope: &mut Scope<'_>,
) -> Result<MailCall, Failure> {
    let to: Mailbox = to.parse().map_err(|error| bad_payload(format!("`to` is {error}")))?;
    letter(scope.house(), server, &to, message, key.as_str(), action.timeout)
}

/// A mail to one address, known by `id`.
pub fn letter(
    house: &House,
    server: &MailServer,
    to: &Mailbox,
    message: Message,
    id: &str,
    timeout: Duration,
) -> Result<MailCall, Failure> {
    let subject = message.subject.as_deref().unwrap_or_default().trim();
    // A line break would be the end of its header and the beginning of another.
    if subject.is_empty() || subject.chars().any(char::is_control) {
        return Err(bad_payload("its subject is empty, or has a line break in it"));
    }
    // Several installations count their jobs alike.
    let home = Pepper::new(house.store.pepper()).installation();
    let message_id = format!("<{id}-{home}@{}>", server.from.domain);
    let head = lettre::Message::builder()
        .from(headed(&server.from).ok_or_else(|| Failure::new(Reason::ConfigError, "`from` is no mail address"))?)
        .to(headed(to).ok_or_else(|| bad_payload("`to` is not a mail address"))?)
        .subject(subject)
        .message_id(Some(message_id.clone()));
    let part = |text: String, kind| SinglePart::builder().header(kind).body(text);
    let built = match (message.text, message.html) {
        (Some(text), Some(html)) => head.multipart(MultiPart::alternative_plain_html(text, html)),
        (None, Some(html)) => head.singlepart(part(html, ContentType::TEXT_HTML)),
        (text, None) => head.singlepart(part(text.unwrap_or_default(), ContentType::TEXT_PLAIN)),
    };
    let built = built.map_err(|_| bad_payload("it cannot be made into a mail"))?;
    let address = config::address(&server.address, |name| house.secrets.get(name))?;
    let server_read = Server::read(&address, server.clear);
    Ok(MailCall {
        server: server_read.ok_or_else(|| Failure::new(Reason::ConfigError, "its `smtp` is not a mail server"))?,
        from: built.envelope().from().map_or_else(|| server.from.address(), ToString::to_string),
        to: built.envelope().to().first().map_or_else(|| to.address(), ToString::to_string),
        mail: built.formatted(),
        message_id,
        timeout,
    })
}

fn headed(mailbox: &Mailbox) -> Option<Headed> {
    let address = lettre::Address::new(&mailbox.local, &mailbox.domain).ok()?;
    Some(Headed::new(mailbox.name.clone(), address))
}

/// A tree of JSON is sent as it is, with the channel in it.
fn slack(action: &SendAction, to: String, message: Message, scope: &mut Scope<'_>) -> Result<HttpCall, Failure> {
    let mut body = match (message.json, message.text) {
        (Some(json), _) => json,
        (None, text) => json!({ "text": text.unwrap_or_default() }),
    };
    let Value::Object(fields) = &mut body else {
        return Err(Failure::new(Reason::ConfigError, "its JSON is not a message of Slack, which is a map"));
    };
    fields.insert("channel".into(), to.into());
    Ok(to_slack(&action.partner, &body, action.timeout, scope)?)
}

/// A message that is put together already.
pub fn to_slack(
    partner: &Integration,
    body: &Value,
    timeout: Duration,
    scope: &mut Scope<'_>,
) -> Result<HttpCall, BadExpr> {
    // With a base of its own, a path is appended to it.
    let url = slack_url(partner.base_url.as_ref().map(|_| ""));
    post(partner, &Template::Plain(url), (body.to_string(), "application/json; charset=utf-8"), None, timeout, scope)
}

/// Where Slack, or whoever stands in for it there, takes messages.
pub fn slack_url(base: Option<&str>) -> String {
    format!("{}/api/chat.postMessage", base.unwrap_or(SLACK).trim_end_matches('/'))
}

fn request(
    action: &SendAction,
    channel: &MessageRequest,
    to: &str,
    message: Message,
    key: IdempotencyKey,
    mut names: scope::Scope,
    scope: &mut Scope<'_>,
) -> Result<HttpCall, Failure> {
    names.insert("message", message.named(to));
    let (body, kind) = match &channel.body {
        MessageBody::Written => message.written(),
        MessageBody::Tree(tree) => (tree.value(&names)?.to_string(), "application/json"),
        MessageBody::Form(fields) => {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            for (name, value) in fields {
                form.append_pair(name, &value.text(&names)?);
            }
            (form.finish(), "application/x-www-form-urlencoded")
        }
    };
    Ok(post(&action.partner, &channel.url, (body, kind), Some(key), action.timeout, scope)?)
}

fn post(
    partner: &Integration,
    url: &Template,
    (body, kind): (String, &'static str),
    key: Option<IdempotencyKey>,
    timeout: Duration,
    scope: &mut Scope<'_>,
) -> Result<HttpCall, BadExpr> {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let key = key.map(|key| Ok((header_name(&partner.key_header)?, key))).transpose()?;
    let uri = uri(url, partner, scope)?;
    let call = HttpCall { method: Method::POST, uri, headers, body: body.into(), timeout, key };
    with_headers(call, partner, &[], scope)
}
