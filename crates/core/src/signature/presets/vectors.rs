//! What providers really send, or as good as: a vector for every preset, and everything that must break it.

use super::super::window::TOLERANCE_USUAL;
use super::super::{Refusal, Request, Scheme, Secret, Secrets, Verified, Window, verify};
use super::{ALL, Event, Preset, find};
use crate::time::Timestamp;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use data_encoding::BASE64;
use proptest::prelude::*;
use std::time::Duration;

struct Vector {
    case: &'static str,
    preset: &'static str,
    origin: Origin,
    secret: &'static str,
    other: &'static str,
    method: &'static str,
    url: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    at: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Published by the provider: its documentation, or the tests of its library.
    Official,
    /// Made with another implementation of HMAC, after the provider's description.
    Own,
}

static VECTORS: [Vector; 41] = [
    Vector {
        case: "Standard Webhooks, test_sign of the reference library",
        preset: "standardwebhooks",
        origin: Origin::Official,
        secret: "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        other: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        method: "POST",
        url: "",
        headers: &[
            ("webhook-id", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk"),
            ("webhook-timestamp", "1649367553"),
            ("webhook-signature", "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="),
        ],
        body: r#"{"email":"test@example.com","username":"test_user"}"#,
        at: 1649367553,
    },
    Vector {
        case: "the same under the older names of its headers",
        preset: "standardwebhooks",
        origin: Origin::Official,
        secret: "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        other: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        method: "POST",
        url: "",
        headers: &[
            ("svix-id", "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk"),
            ("svix-timestamp", "1649367553"),
            ("svix-signature", "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="),
        ],
        body: r#"{"email":"test@example.com","username":"test_user"}"#,
        at: 1649367553,
    },
    Vector {
        case: "t010 Stripe, the second of two v1",
        preset: "stripe",
        origin: Origin::Own,
        secret: "whsec_test",
        other: "whsec_testx",
        method: "POST",
        url: "",
        headers: &[(
            "stripe-signature",
            "t=1700000000,v1=fbd70cfba105bfc25d81bb23d3d3ca8a77036ddc79a5dc9fa832e4abea06e49e,v0=0000000000000000000000000000000000000000000000000000000000000000,v1=4aa90aa69730f112c87accbf54203d1076675eae3b18a5cb82b5ab9e7f5cd5bc",
        )],
        body: r#"{"id":"evt_1","type":"invoice.paid"}"#,
        at: 1700000000,
    },
    Vector {
        case: "t012 GitHub's documentation",
        preset: "github",
        origin: Origin::Official,
        secret: "It's a Secret to Everybody",
        other: "It's a Secret to Everybodyx",
        method: "POST",
        url: "",
        headers: &[("x-hub-signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")],
        body: "Hello, World!",
        at: 1700000000,
    },
    Vector {
        case: "t012 GitHub's documentation, in upper case",
        preset: "github",
        origin: Origin::Official,
        secret: "It's a Secret to Everybody",
        other: "It's a Secret to Everybodyx",
        method: "POST",
        url: "",
        headers: &[("x-hub-signature-256", "sha256=757107EA0EB2509FC211221CCE984B8A37570B6D7586C22C46F4379C8B043E17")],
        body: "Hello, World!",
        at: 1700000000,
    },
    Vector {
        case: "t023 Shopify",
        preset: "shopify",
        origin: Origin::Own,
        secret: "hush",
        other: "hushx",
        method: "POST",
        url: "",
        headers: &[("x-shopify-hmac-sha256", "gHDQy76+38chKmG/hW2suoASSgJPriCh7sYbzaB7OQI=")],
        body: r#"{"id":820982911946154508,"total_price":"403.00"}"#,
        at: 1700000000,
    },
    Vector {
        case: "t023 Shopify Events",
        preset: "shopify",
        origin: Origin::Own,
        secret: "hush",
        other: "hushx",
        method: "POST",
        url: "",
        headers: &[("shopify-hmac-sha256", "gHDQy76+38chKmG/hW2suoASSgJPriCh7sYbzaB7OQI=")],
        body: r#"{"id":820982911946154508,"total_price":"403.00"}"#,
        at: 1700000000,
    },
    Vector {
        case: "t014 Slack's documentation",
        preset: "slack",
        origin: Origin::Official,
        secret: "8f742231b10e8888abcd99yyyzzz85a5",
        other: "8f742231b10e8888abcd99yyyzzz85a5x",
        method: "POST",
        url: "",
        headers: &[
            ("x-slack-request-timestamp", "1531420618"),
            ("x-slack-signature", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"),
        ],
        body: "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
        at: 1531420618,
    },
    Vector {
        case: "t015 Twilio's libraries, a form",
        preset: "twilio",
        origin: Origin::Official,
        secret: "12345",
        other: "12345x",
        method: "POST",
        url: "https://mycompany.com/myapp.php?foo=1&bar=2",
        headers: &[("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=")],
        body: "Digits=1234&To=%2B18005551212&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE",
        at: 1700000000,
    },
    Vector {
        case: "t015 Twilio's libraries, a port that was not signed",
        preset: "twilio",
        origin: Origin::Official,
        secret: "12345",
        other: "12345x",
        method: "POST",
        url: "https://mycompany.com:1234/myapp.php?foo=1&bar=2",
        headers: &[("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=")],
        body: "Digits=1234&To=%2B18005551212&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE",
        at: 1700000000,
    },
    Vector {
        case: "t015 Twilio's libraries, the default port signed",
        preset: "twilio",
        origin: Origin::Official,
        secret: "12345",
        other: "12345x",
        method: "POST",
        url: "https://mycompany.com/myapp.php?foo=1&bar=2",
        headers: &[("x-twilio-signature", "kvajT1Ptam85bY51eRf/AJRuM3w=")],
        body: "Digits=1234&To=%2B18005551212&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE",
        at: 1700000000,
    },
    Vector {
        case: "Twilio's libraries, a field that came several times",
        preset: "twilio",
        origin: Origin::Official,
        secret: "12345",
        other: "12345x",
        method: "POST",
        url: "https://mycompany.com/myapp.php?foo=1&bar=2",
        headers: &[("x-twilio-signature", "IK+Dwps556ElfBT0I3Rgjkr1wJU=")],
        body: "Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234&Digits=1234",
        at: 1700000000,
    },
    Vector {
        case: "Twilio's libraries, user and password in the address",
        preset: "twilio",
        origin: Origin::Official,
        secret: "12345",
        other: "12345x",
        method: "POST",
        url: "https://user:pass@mycompany.com/myapp.php?foo=1&bar=2",
        headers: &[("x-twilio-signature", "CukzLTc1tT5dXEDIHm/tKBanW10=")],
        body: "Digits=1234&To=%2B18005551212&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE",
        at: 1700000000,
    },
    Vector {
        case: "t016 Twilio's libraries, JSON through its digest",
        preset: "twilio",
        origin: Origin::Official,
        secret: "12345",
        other: "12345x",
        method: "POST",
        url: "https://mycompany.com/myapp.php?foo=1&bar=2&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620",
        headers: &[("x-twilio-signature", "a9nBmqA0ju/hNViExpshrM61xv4=")],
        body: r#"{"property": "value", "boolean": true}"#,
        at: 1700000000,
    },
    Vector {
        case: "t018 HubSpot's documentation, v1",
        preset: "hubspot-v1",
        origin: Origin::Official,
        secret: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy",
        other: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyyx",
        method: "POST",
        url: "",
        headers: &[
            ("x-hubspot-signature", "232db2615f3d666fe21a8ec971ac7b5402d33b9a925784df3ca654d05f4817de"),
            ("x-hubspot-signature-version", "v1"),
        ],
        body: r#"[{"eventId":1,"subscriptionId":12345,"portalId":62515,"occurredAt":1564113600000,"subscriptionType":"contact.creation","attemptNumber":0,"objectId":123,"changeSource":"CRM","changeFlag":"NEW","appId":54321}]"#,
        at: 1700000000,
    },
    Vector {
        case: "t018 HubSpot's documentation, v2",
        preset: "hubspot-v2",
        origin: Origin::Official,
        secret: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy",
        other: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyyx",
        method: "POST",
        url: "https://www.example.com/webhook_uri",
        headers: &[
            ("x-hubspot-signature", "9569219f8ba981ffa6f6f16aa0f48637d35d728c7e4d93d0d52efaa512af7900"),
            ("x-hubspot-signature-version", "v2"),
        ],
        body: r#"{"example_field":"example_value"}"#,
        at: 1700000000,
    },
    Vector {
        case: "t018 HubSpot's documentation, v2 without a body",
        preset: "hubspot-v2",
        origin: Origin::Official,
        secret: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy",
        other: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyyx",
        method: "GET",
        url: "https://www.example.com/webhook_uri",
        headers: &[
            ("x-hubspot-signature", "eee2dddcc73c94d699f5e395f4b9d454a069a6855fbfa152e91e88823087200e"),
            ("x-hubspot-signature-version", "v2"),
        ],
        body: "",
        at: 1700000000,
    },
    Vector {
        case: "t018 HubSpot's Python library, v3",
        preset: "hubspot-v3",
        origin: Origin::Official,
        secret: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy",
        other: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyyx",
        method: "POST",
        url: "https://www.example.com/webhook_uri",
        headers: &[
            ("x-hubspot-signature-v3", "K36dawei4A+QBNolUOqo7s91KQDWQ5MXZ/QufNYuk/Y="),
            ("x-hubspot-request-timestamp", "1693657560000"),
        ],
        body: "{'example_field':'example_value'}",
        at: 1693657560,
    },
    Vector {
        case: "t018 HubSpot v3, an address that its documentation decodes",
        preset: "hubspot-v3",
        origin: Origin::Own,
        secret: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy",
        other: "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyyx",
        method: "POST",
        url: "https://a.example/in?to=x%40b.example",
        headers: &[
            ("x-hubspot-signature-v3", "L7ZbX0VfQLDjuM9YVnReWu6xgVe93dgPa3QMd5Vv/4o="),
            ("x-hubspot-request-timestamp", "1693657560000"),
        ],
        body: "[]",
        at: 1693657560,
    },
    Vector {
        case: "Meta",
        preset: "meta",
        origin: Origin::Own,
        secret: "appsecret",
        other: "appsecretx",
        method: "POST",
        url: "",
        headers: &[("x-hub-signature-256", "sha256=e586e3f0571c242cb0416c0a46bc6988b2e604d7965003326327f125fc26e49f")],
        body: r#"{"object":"page","entry":[{"id":"1","time":2,"changes":[{"field":"leadgen","value":{"leadgen_id":"444","name":"\u00e4"}}]}]}"#,
        at: 1700000000,
    },
    Vector {
        case: "t027 Typeform",
        preset: "typeform",
        origin: Origin::Own,
        secret: "abc123",
        other: "abc123x",
        method: "POST",
        url: "",
        headers: &[("typeform-signature", "sha256=fQ0Tf/AAVUZy1Bdk1is5tXMLH2Il2Qj36lezGX2eN6s=")],
        body: r#"{"event_id":"LtWXD3crgy","event_type":"form_response"}"#,
        at: 1700000000,
    },
    Vector {
        case: "Calendly",
        preset: "calendly",
        origin: Origin::Own,
        secret: "calsecret",
        other: "calsecretx",
        method: "POST",
        url: "",
        headers: &[(
            "calendly-webhook-signature",
            "t=1700000000,v1=d174ffca130da3b74b39f88d1e87953a23c1bc4db47c44f0c86328af49e17a7c",
        )],
        body: r#"{"event":"invitee.created","payload":{"uri":"https://api.calendly.com/x"}}"#,
        at: 1700000000,
    },
    Vector {
        case: "t025 Mandrill, user and password in the address",
        preset: "mandrill",
        origin: Origin::Own,
        secret: "mandrillkey",
        other: "mandrillkeyx",
        method: "POST",
        url: "https://user:pass@a.example/in?x=1",
        headers: &[("x-mandrill-signature", "fmMWESnW6xrxC7xooFgnol/bLqU=")],
        body: "mandrill_events=%5B%7B%22event%22%3A%22open%22%2C%22_id%22%3A%22a%22%2C%22ts%22%3A1%7D%5D&a=b+c",
        at: 1700000000,
    },
    Vector {
        case: "t020 SendGrid's Python library, with its CR LF",
        preset: "sendgrid",
        origin: Origin::Official,
        secret: "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g==",
        other: "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqTxd43gyp8IOEto2LdIfjRQrIbsd4SXZkLW6jDutdhXSJCWHw8REntlo7aNDthvj+y7GjUuFDb/R1NGe1OPzpA==",
        method: "POST",
        url: "",
        headers: &[
            (
                "x-twilio-email-event-webhook-signature",
                "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM=",
            ),
            ("x-twilio-email-event-webhook-timestamp", "1600112502"),
        ],
        body: "[{\"email\":\"hello@world.com\",\"event\":\"dropped\",\"reason\":\"Bounced Address\",\"sg_event_id\":\"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA\",\"sg_message_id\":\"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0\",\"smtp-id\":\"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>\",\"timestamp\":1600112492}]\r\n",
        at: 1600112502,
    },
    Vector {
        case: "t021 Paddle's Node library",
        preset: "paddle",
        origin: Origin::Official,
        secret: "VALID_SECRET",
        other: "VALID_SECRETx",
        method: "POST",
        url: "",
        headers: &[(
            "paddle-signature",
            "ts=1698796800;h1=a300428748dce5c70e4da19bffd60769591ea969c99dea3105d0ec9612cf43f9",
        )],
        body: r#"{"data": ["1", "2"]}"#,
        at: 1698796800,
    },
    Vector {
        case: "t021 Paddle, only the first of two h1 is good",
        preset: "paddle",
        origin: Origin::Official,
        secret: "VALID_SECRET",
        other: "VALID_SECRETx",
        method: "POST",
        url: "",
        headers: &[(
            "paddle-signature",
            "ts=1698796800;h1=a300428748dce5c70e4da19bffd60769591ea969c99dea3105d0ec9612cf43f9;h1=0000000000000000000000000000000000000000000000000000000000000000",
        )],
        body: r#"{"data": ["1", "2"]}"#,
        at: 1698796800,
    },
    Vector {
        case: "Intercom",
        preset: "intercom",
        origin: Origin::Own,
        secret: "clientsecret",
        other: "clientsecretx",
        method: "POST",
        url: "",
        headers: &[("x-hub-signature", "sha1=3deca710331d4c70892d4badb2209de7a65027da")],
        body: r#"{"type":"notification_event","id":"notif_1","topic":"contact.created"}"#,
        at: 1700000000,
    },
    Vector {
        case: "t022 Linear",
        preset: "linear",
        origin: Origin::Own,
        secret: "lin_wh_x",
        other: "lin_wh_xx",
        method: "POST",
        url: "",
        headers: &[("linear-signature", "c28eac4c911e8f58359c444fe72855304d852770d311289ad1fabcd66726ea08")],
        body: r#"{"action":"create","type":"Issue","webhookTimestamp":1700000000000}"#,
        at: 1700000000,
    },
    Vector {
        case: "Zoom",
        preset: "zoom",
        origin: Origin::Own,
        secret: "zoomsecret",
        other: "zoomsecretx",
        method: "POST",
        url: "",
        headers: &[
            ("x-zm-signature", "v0=2f735b90ecb2c87b677894b4ef1a31956ab984e44dfc807fe8fb6afff56d458f"),
            ("x-zm-request-timestamp", "1700000000"),
        ],
        body: r#"{"event":"meeting.started","payload":{"account_id":"abc"}}"#,
        at: 1700000000,
    },
    Vector {
        case: "t019 Square's Node library",
        preset: "square",
        origin: Origin::Official,
        secret: "Ibxx_5AKakO-3qeNVR61Dw",
        other: "Ibxx_5AKakO-3qeNVR61Dwx",
        method: "POST",
        url: "https://webhook.site/679a4f3a-dcfa-49ee-bac5-9d0edad886b9",
        headers: &[("x-square-hmacsha256-signature", "GF4YkrJgGBDZ9NIYbNXBnMzqb2HoL4RW/S6vkZ9/2N4=")],
        body: r#"{"merchant_id":"MLEFBHHSJGVHD","type":"webhooks.test_notification","event_id":"ac3ac95b-f97d-458c-a6e6-18981597e05f","created_at":"2022-07-13T20:30:59.037339943Z","data":{"type":"webhooks","id":"bc368e64-01aa-407e-b46e-3231809b1129"}}"#,
        at: 1700000000,
    },
    Vector {
        case: "t024 WooCommerce, a secret with an entity",
        preset: "woocommerce",
        origin: Origin::Own,
        secret: "a&amp;b",
        other: "a&amp;bx",
        method: "POST",
        url: "",
        headers: &[("x-wc-webhook-signature", "eujb8wkWXkuymKAp3o0cwKZsrV301kmVd7I89FEGRNI=")],
        body: r#"{"id":727,"status":"processing"}"#,
        at: 1700000000,
    },
    Vector {
        case: "WooCommerce's own test, whose secret is empty: for HMAC that is a zero",
        preset: "woocommerce",
        origin: Origin::Official,
        secret: "\0",
        other: "x",
        method: "POST",
        url: "",
        headers: &[("x-wc-webhook-signature", "GBDo00G55h6IiV+6CxqivQPLbI//KzaOZm747971tPs=")],
        body: "secret",
        at: 1700000000,
    },
    Vector {
        case: "t026 Klaviyo, body first",
        preset: "klaviyo",
        origin: Origin::Own,
        secret: "klaviyo-secret-16",
        other: "klaviyo-secret-16x",
        method: "POST",
        url: "",
        headers: &[
            ("klaviyo-signature", "f2ea6aeea7a0aabecf0a2b0b25fe46798d2c48ead81277c92951ba096e228f89"),
            ("klaviyo-timestamp", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ],
        body: r#"{"data":[{"external_id":"7","topic":"event:klaviyo.opened_email","payload":{}}],"meta":{}}"#,
        at: 1700000000,
    },
    Vector {
        case: "Segment",
        preset: "segment",
        origin: Origin::Own,
        secret: "segsecret",
        other: "segsecretx",
        method: "POST",
        url: "",
        headers: &[("x-signature", "fef4716a7973e02c16b065d59d63c1ef2c7dc54f")],
        body: r#"{"type":"track","event":"Order Completed","messageId":"m-1"}"#,
        at: 1700000000,
    },
    Vector {
        case: "t028 Google Ads",
        preset: "google-ads",
        origin: Origin::Own,
        secret: "leadkey",
        other: "leadkeyx",
        method: "POST",
        url: "",
        headers: &[],
        body: r#"{"lead_id":"L1","google_key":"leadkey","is_test":false}"#,
        at: 1700000000,
    },
    Vector {
        case: "Google Ads, a lead after its published schema",
        preset: "google-ads",
        origin: Origin::Own,
        secret: "testkey",
        other: "testkeyx",
        method: "POST",
        url: "",
        headers: &[],
        body: r#"{"lead_id":"made-up-lead","user_column_data":[{"column_name":"Full Name","string_value":"FirstName LastName","column_id":"FULL_NAME"},{"column_name":"Work Email","string_value":"work-test@example.com","column_id":"WORK_EMAIL"}],"api_version":"1.0","form_id":40000000000,"campaign_id":10000000000,"google_key":"testkey","is_test":true,"gcl_id":"made-up-click","adgroup_id":20000000000,"creative_id":30000000000}"#,
        at: 1700000000,
    },
    Vector {
        case: "TikTok",
        preset: "tiktok",
        origin: Origin::Own,
        secret: "ttsecret",
        other: "ttsecretx",
        method: "POST",
        url: "",
        headers: &[(
            "tiktok-signature",
            "t=1700000000,s=69024d991898c781b0b73d7fcbbb2ec09a4a31a8f6e3bcfd643a2fd3e5a42050",
        )],
        body: r#"{"client_key":"k","event":"video.publish.completed"}"#,
        at: 1700000000,
    },
    Vector {
        case: "Zendesk",
        preset: "zendesk",
        origin: Origin::Own,
        secret: "zdsecret",
        other: "zdsecretx",
        method: "POST",
        url: "",
        headers: &[
            ("x-zendesk-webhook-signature", "Dt8/yRIDSzRS3ps/pNrRxZ/eXtMavTa9MiuC6hwFDMY="),
            ("x-zendesk-webhook-signature-timestamp", "2023-11-14T22:13:20Z"),
        ],
        body: r#"{"type":"zen:event-type:ticket.created","id":"1"}"#,
        at: 1700000000,
    },
    Vector {
        case: "any HMAC sender",
        preset: "hmac",
        origin: Origin::Own,
        secret: "s3cret",
        other: "s3cretx",
        method: "POST",
        url: "",
        headers: &[("x-signature", "adbde1ce40c89c14215687d5d762a47df6dfaefcfad61e2e86718ffc8498571b")],
        body: "{}",
        at: 1700000000,
    },
    Vector {
        case: "RFC 4231, case 2",
        preset: "hmac",
        origin: Origin::Official,
        secret: "Jefe",
        other: "Jefex",
        method: "POST",
        url: "",
        headers: &[("x-signature", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")],
        body: "what do ya want for nothing?",
        at: 1700000000,
    },
    Vector {
        case: "HTTP message signature",
        preset: "rfc9421",
        origin: Origin::Own,
        secret: "hmac-sha256:uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==",
        other: "hmac-sha256:AAAA",
        method: "POST",
        url: "https://example.com/foo?a=b",
        headers: &[
            ("signature-input", r#"sig=("@method" "@target-uri" "content-digest");created=1700000000;keyid="k""#),
            ("signature", "sig=:xQZ7Nr/3YwLttU+BCoIP3edcK+sP444JjjHQCIaLhLA=:"),
            ("content-digest", "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"),
        ],
        body: r#"{"hello": "world"}"#,
        at: 1700000000,
    },
];

/// A request that may differ from a vector.
#[derive(Clone)]
struct Sent {
    preset: &'static Preset,
    secrets: Vec<String>,
    method: String,
    url: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    now: i64,
    tolerance: Option<Duration>,
}

impl From<&Vector> for Sent {
    fn from(vector: &Vector) -> Sent {
        let headers = vector.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
        Sent {
            preset: find(vector.preset).expect("a preset"),
            secrets: vec![vector.secret.into()],
            method: vector.method.into(),
            url: vector.url.into(),
            headers: headers.collect(),
            body: vector.body.into(),
            now: vector.at,
            tolerance: None,
        }
    }
}

impl Sent {
    fn answer(&self) -> Result<Verified, Refusal> {
        let scheme = (self.preset.scheme)();
        let read = |text: &String| scheme.secret_format().read(text).expect("a secret");
        let secrets = self.secrets.iter().enumerate().map(|(place, text)| Secret::new(place.to_string(), read(text)));
        let secrets = Secrets::new(secrets.collect()).expect("secrets");
        let window = Window { tolerance: self.tolerance, ..Window::at(moment(self.now)) };
        self.request(|request| verify(&scheme, request, &secrets, window))
    }

    fn request<T>(&self, ask: impl FnOnce(&Request<'_>) -> T) -> T {
        let headers: Vec<(&str, &[u8])> = self.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        ask(&Request { method: &self.method, url: &self.url, headers: &headers, body: &self.body })
    }

    fn events(&self) -> Vec<(String, String, String)> {
        let told = |event: Event<'_>| {
            (event.id.expect("an id"), event.kind, String::from_utf8(event.body.into()).expect("text"))
        };
        self.request(|request| self.preset.events(request).expect("events").into_iter().map(told).collect())
    }

    fn set(mut self, name: &str, value: &str) -> Sent {
        self.headers.retain(|(there, _)| there != name);
        self.headers.push((name.into(), value.into()));
        self
    }
}

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Accepted,
    Refused,
    Mismatch,
    Stale,
    Future,
}

#[track_caller]
fn check(case: &str, sent: &Sent, expected: Expected) {
    let answer = sent.answer();
    let fits = match expected {
        Expected::Accepted => answer.is_ok(),
        Expected::Refused => answer.is_err(),
        Expected::Mismatch => answer == Err(Refusal::Mismatch),
        Expected::Stale => matches!(answer, Err(Refusal::Stale { .. })),
        Expected::Future => matches!(answer, Err(Refusal::Future { .. })),
    };
    assert!(fits, "{case}: {answer:?} instead of {expected:?}");
}

fn vector(case: &str) -> Sent {
    VECTORS.iter().find(|vector| vector.case.starts_with(case)).expect("a case").into()
}

fn sent(preset: &str, headers: &[(&str, &str)], body: &str) -> Sent {
    let mut sent = Sent::from(VECTORS.iter().find(|vector| vector.preset == preset).expect("a vector"));
    sent.headers = headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect();
    sent.body = body.into();
    sent
}

#[test]
fn t001_every_vector_is_accepted_and_every_preset_has_one() {
    for vector in &VECTORS {
        check(vector.case, &vector.into(), Expected::Accepted);
    }
    for preset in ALL {
        assert!(VECTORS.iter().any(|vector| vector.preset == preset.name), "no vector for {}", preset.name);
    }
    let official = |name: &str| VECTORS.iter().any(|one| one.preset == name && one.origin == Origin::Official);
    let published = ["standardwebhooks", "github", "slack", "twilio", "hubspot-v1", "hubspot-v2", "hubspot-v3"];
    assert!(
        published.iter().chain(&["sendgrid", "paddle", "square", "woocommerce", "hmac"]).all(|name| official(name))
    );
}

#[test]
fn t002_one_flipped_bit_of_the_body_is_refused_wherever_it_is() {
    for vector in &VECTORS {
        // Where nothing is signed, only the key itself can be wrong.
        let whole = 0..vector.body.len();
        let places = match (find(vector.preset).expect("a preset").scheme)() {
            Scheme::Token(_) => {
                let start = vector.body.find(vector.secret).expect("the key is in the body");
                start..start + vector.secret.len()
            }
            _ => whole,
        };
        for place in places {
            let mut sent = Sent::from(vector);
            sent.body[place] ^= 1;
            check(vector.case, &sent, Expected::Refused);
        }
    }
}

#[test]
fn t002_one_changed_character_of_the_signature_is_refused_wherever_it_is() {
    for vector in &VECTORS {
        let Some(name) = (find(vector.preset).expect("a preset").scheme)().headers().into_iter().next() else {
            continue;
        };
        let Some((_, value)) = vector.headers.iter().find(|(there, _)| *there == name) else { continue };
        if value.matches("v1=").count() + value.matches("h1=").count() > 1 {
            continue;
        }
        for place in 0..value.len() {
            let mut changed = value.as_bytes().to_vec();
            changed[place] = if changed[place] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).expect("ASCII");
            check(vector.case, &Sent::from(vector).set(&name, &changed), Expected::Refused);
        }
    }
}

#[test]
fn t002_another_secret_is_refused_and_several_are_all_tried() {
    for vector in &VECTORS {
        let with =
            |secrets: &[&str]| Sent { secrets: secrets.iter().map(|s| s.to_string()).collect(), ..vector.into() };
        check(vector.case, &with(&[vector.other]), Expected::Mismatch);
        for (secrets, matched) in [([vector.other, vector.secret], "1"), ([vector.secret, vector.other], "0")] {
            assert_eq!(with(&secrets).answer().expect("accepted").secret_id, matched, "{}", vector.case);
        }
    }
}

#[test]
fn a3_a_stale_or_a_future_timestamp_is_refused_wherever_there_is_one() {
    let mut dated = 0;
    for vector in &VECTORS {
        let scheme = (find(vector.preset).expect("a preset").scheme)();
        if Sent::from(vector).answer().expect("accepted").signed_at.is_none() {
            assert_eq!(scheme.tolerance(), None, "{}", vector.case);
            continue;
        }
        dated += 1;
        let at = |off: i64, tolerance| Sent { now: vector.at + off, tolerance, ..vector.into() };
        for tolerance in [Some(TOLERANCE_USUAL), Some(Duration::from_secs(1)), None] {
            let Some(limit) = tolerance.or(scheme.tolerance()) else {
                check(vector.case, &at(100_000, None), Expected::Accepted);
                continue;
            };
            let limit = limit.as_secs() as i64;
            check(vector.case, &at(limit, tolerance), Expected::Accepted);
            check(vector.case, &at(-limit, tolerance), Expected::Accepted);
            check(vector.case, &at(limit + 1, tolerance), Expected::Stale);
            check(vector.case, &at(-limit - 1, tolerance), Expected::Future);
        }
    }
    assert!(dated >= 14, "only {dated} vectors have a timestamp");
}

#[test]
fn t032_a_header_that_is_missing_came_twice_or_is_unreadable_is_refused() {
    for vector in &VECTORS {
        for place in 0..vector.headers.len() {
            let mut missing = Sent::from(vector);
            let (name, value) = missing.headers.remove(place);
            check(vector.case, &missing, Expected::Refused);
            for second in [value.clone(), b"other".to_vec()] {
                let mut twice = Sent::from(vector);
                twice.headers.insert(place + 1, (name.clone(), second.clone()));
                assert_eq!(twice.answer(), Err(Refusal::HeaderTwice(name.clone())), "{}", vector.case);
                let mut twice = Sent::from(vector);
                twice.headers.insert(place, (name.clone(), second));
                assert_eq!(twice.answer(), Err(Refusal::HeaderTwice(name.clone())), "{}", vector.case);
            }
            let mut unreadable = Sent::from(vector);
            unreadable.headers[place].1.push(0xe9);
            assert_eq!(unreadable.answer(), Err(Refusal::HeaderUnreadable(name.clone())), "t033 {}", vector.case);
            let mut long = Sent::from(vector);
            long.headers[place].1 = vec![b'a'; 9000];
            assert_eq!(long.answer(), Err(Refusal::HeaderTooLong(name)), "{}", vector.case);
        }
    }
}

#[test]
fn t017_what_the_caller_says_about_its_address_changes_nothing() {
    for vector in &VECTORS {
        let forged = Sent::from(vector).set("host", "evil.example").set("x-forwarded-host", "evil.example");
        check(vector.case, &forged.set("x-forwarded-proto", "http"), Expected::Accepted);
        let other = Sent { url: "https://other.example/in".into(), ..vector.into() };
        let scheme = (other.preset.scheme)();
        check(vector.case, &other, if scheme.needs_url() { Expected::Refused } else { Expected::Accepted });
        if scheme.needs_url() {
            let none = Sent { url: String::new(), ..vector.into() };
            assert_eq!(none.answer(), Err(Refusal::NoUrl), "{}", vector.case);
        }
    }
}

#[test]
fn t003_a_signature_that_is_empty_cut_short_or_of_another_version_is_refused() {
    let good = "tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";
    let check =
        |value: &str| check(value, &vector("Standard Webhooks").set("webhook-signature", value), Expected::Refused);
    for value in ["v1,", "v1,tZ1I", "", " ", "v1", "v2,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=", "v1a,AAAA"] {
        check(value);
    }
    check(good);
    check(&format!("v1,{}", good.trim_end_matches('=')));
    check(&format!("v1,{good} ").repeat(11));
}

#[test]
fn t004_one_good_signature_among_others_is_enough() {
    let good = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";
    let bad = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    for value in [format!("{bad} {good}"), format!("v1a,AAAA {good}"), format!("{good} v9,? {bad}")] {
        check(&value, &vector("Standard Webhooks").set("webhook-signature", &value), Expected::Accepted);
    }
}

#[test]
fn t007_t010_stripe_needs_its_header_and_a_v1_in_it() {
    check("t007", &sent("stripe", &[], "{}"), Expected::Refused);
    let good = vector("t010");
    let value = String::from_utf8(good.headers[0].1.clone()).expect("ASCII");
    let (rest, signature) = value.rsplit_once("v1=").expect("a v1");
    let only_v0 = format!("{},v0={signature}", rest.split(',').next().expect("a timestamp"));
    check("t010", &good.clone().set("stripe-signature", &only_v0), Expected::Refused);
    for broken in ["t=1", "v1=ab", "t=x,v1=ab", "t=1,t=2,v1=ab", "hello", "t=1700000000,v1=zz"] {
        check(broken, &good.clone().set("stripe-signature", broken), Expected::Refused);
    }
    let tired = format!("{value}{}", format!(",v1={signature}").repeat(10));
    assert_eq!(
        good.set("stripe-signature", &tired).answer(),
        Err(Refusal::TooManySignatures("stripe-signature".into()))
    );
}

#[test]
fn t011_stripes_secret_is_the_whole_text_and_not_base64() {
    let mut good = vector("t010");
    good.secrets = vec!["test".into()];
    check("t011", &good, Expected::Mismatch);
}

#[test]
fn t012_the_older_signature_of_github_alone_is_refused() {
    check(
        "sha1",
        &sent("github", &[("x-hub-signature", "sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59")], "{}"),
        Expected::Refused,
    );
}

#[test]
fn t013_a_secret_counts_only_while_it_is_live() {
    let good = vector("t012");
    let key = (good.preset.scheme)().secret_format().read(&good.secrets[0]).expect("a secret");
    let answer = |now: i64| {
        let old =
            Secret { not_before: Some(moment(100)), not_after: Some(moment(200)), ..Secret::new("old", key.clone()) };
        let secrets = Secrets::new(vec![old]).expect("a secret");
        good.request(|request| verify(&(good.preset.scheme)(), request, &secrets, Window::at(moment(now))))
    };
    assert_eq!(answer(150).expect("live").secret_id, "old");
    assert_eq!(answer(200).expect("the last moment counts").secret_id, "old");
    for now in [99, 201] {
        assert_eq!(answer(now), Err(Refusal::NoLiveSecret));
    }
}

#[test]
fn t018_the_version_that_hubspot_names_must_be_the_one_of_the_source() {
    let good = vector("t018 HubSpot's documentation, v1");
    check("v2", &good.clone().set("x-hubspot-signature-version", "v2"), Expected::Refused);
    check("v3", &good.set("x-hubspot-signature-version", "v3"), Expected::Refused);
    let v3 = vector("t018 HubSpot's Python library, v3");
    check("seconds", &v3.set("x-hubspot-request-timestamp", "1693657560"), Expected::Refused);
}

#[test]
fn t020_a_signature_that_is_no_point_and_a_trimmed_body_are_refused() {
    let good = vector("t020");
    let trimmed = Sent { body: good.body.trim_ascii().to_vec(), ..good.clone() };
    check("trimmed", &trimmed, Expected::Mismatch);
    for value in ["AAAA", "MEUCIQ==", "MAYCAQACAQA=", "?"] {
        check(value, &good.clone().set("x-twilio-email-event-webhook-signature", value), Expected::Refused);
    }
}

#[test]
fn t022_a_fresh_header_does_not_make_an_old_linear_body_fresh() {
    let old = Sent { now: 1_700_000_061, ..vector("t022") };
    check("t022", &old.clone().set("linear-timestamp", "1700000061000"), Expected::Stale);
    check("t022", &Sent { now: 1_700_000_060, ..old }, Expected::Accepted);
}

#[test]
fn t026_klaviyo_signs_the_body_first() {
    use aws_lc_rs::hmac;
    let good = vector("t026");
    let at = good.headers[1].1.clone();
    let tag =
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, good.secrets[0].as_bytes()), &[&at[..], &good.body].concat());
    let swapped = data_encoding::HEXLOWER.encode(tag.as_ref());
    check("t026", &good.set("klaviyo-signature", &swapped), Expected::Mismatch);
}

#[test]
fn t027_typeform_writes_base64_and_hex_is_refused() {
    let hex = "0".repeat(64);
    check("t027", &vector("t027").set("typeform-signature", &format!("sha256={hex}")), Expected::Refused);
}

#[test]
fn t029_t030_a_timestamp_or_an_id_that_could_be_misread_is_refused() {
    for at in ["-9223372036854775808", "99999999999999999999", "1e9", " 1649367553", ""] {
        check(at, &vector("Standard Webhooks").set("webhook-timestamp", at), Expected::Refused);
    }
    let id = vector("Standard Webhooks").set("webhook-id", "msg.1");
    assert_eq!(id.answer(), Err(Refusal::AmbiguousId("webhook-id".into())));
}

#[test]
fn t031_a_body_need_not_be_text() {
    use aws_lc_rs::hmac;
    let body = b"\xff\xfe";
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"s3cret"), body);
    let mut raw = vector("any HMAC").set("x-signature", &data_encoding::HEXLOWER.encode(tag.as_ref()));
    raw.body = body.to_vec();
    check("t031", &raw, Expected::Accepted);
}

#[test]
fn t034_a_body_that_was_written_again_is_refused() {
    let mut good = vector("t023 Shopify");
    let value: serde_json::Value = serde_json::from_slice(&good.body).expect("JSON");
    good.body = serde_json::to_vec_pretty(&value).expect("JSON");
    check("t034", &good, Expected::Mismatch);
}

#[test]
fn t036_an_ed25519_signature_of_standard_webhooks_is_checked_with_the_public_key() {
    let [ours, theirs] = [7, 8].map(|seed| Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("a key"));
    let good = vector("Standard Webhooks");
    let message = [b"msg_27UH4WbU6Z5A5EzD8u03UvzRbpk.1649367553.", &good.body[..]].concat();
    let by = |pair: &Ed25519KeyPair| {
        let signature = format!("v1a,{}", BASE64.encode(pair.sign(&message).as_ref()));
        let mut signed = good.clone().set("webhook-signature", &signature);
        signed.secrets = vec![format!("whpk_{}", BASE64.encode(ours.public_key().as_ref()))];
        signed
    };
    check("ours", &by(&ours), Expected::Accepted);
    check("theirs", &by(&theirs), Expected::Mismatch);
    let mut flipped = by(&ours);
    flipped.body[3] ^= 1;
    check("flipped", &flipped, Expected::Mismatch);
    let as_v1 = by(&ours).set("webhook-signature", &format!("v1,{}", BASE64.encode(ours.sign(&message).as_ref())));
    check("as v1", &as_v1, Expected::Refused);
    let mut both = by(&ours);
    both.secrets.push("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".into());
    check("while one replaces the other", &both, Expected::Accepted);
}

#[test]
fn a6_an_event_has_the_providers_id_and_our_kind_of_name() {
    let check = |sent: &Sent, id: &str, kind: &str| {
        let events = sent.events();
        assert_eq!((events[0].0.as_str(), events[0].1.as_str(), events.len()), (id, kind, 1), "{}", sent.preset.name);
    };
    check(&vector("t010"), "evt_1", "stripe.invoice.paid");
    let shop = [("x-shopify-webhook-id", "b54557e4"), ("x-shopify-topic", "carts/update")];
    check(&sent("shopify", &shop, "{}"), "b54557e4", "shopify.cart.updated");
    let shop = [("x-shopify-webhook-id", "b54557e4"), ("x-shopify-topic", "metaobjects/create")];
    check(&sent("shopify", &shop, "{}"), "b54557e4", "shopify.metaobjects.create");
    let hub = [("x-github-delivery", "72d3162e"), ("x-github-event", "pull_request")];
    check(&sent("github", &hub, r#"{"action":"opened"}"#), "72d3162e", "github.pull_request.opened");
    check(&sent("github", &hub, "{}"), "72d3162e", "github.pull_request");
    check(
        &sent("slack", &[], r#"{"event_id":"Ev1","event":{"type":"app_mention"}}"#)
            .set("content-type", "application/json"),
        "Ev1",
        "slack.app_mention",
    );
    check(&vector("Intercom"), "notif_1", "intercom.contact.created");
    check(&vector("t028"), "L1", "google-ads.lead.created");
    check(&vector("Segment"), "m-1", "segment.track.order.completed");
    check(&sent("standardwebhooks", &[("webhook-id", "msg_1")], r#"{"type":"invoice.paid"}"#), "msg_1", "invoice.paid");
    let text = sent("twilio", &[("i-twilio-idempotency-token", "tok")], "SmsStatus=received&From=%2B1&Body=hi+you");
    check(&text, "tok", "twilio.message.received");
    assert_eq!(text.events()[0].2, r#"{"SmsStatus":"received","From":"+1","Body":"hi you"}"#);
}

#[test]
fn p9_what_looks_like_an_address_or_a_token_is_no_type() {
    for said in ["ada@example.com", "+4915112345689", "4111111111111111", "sk_live_canary4eC39HqLyjWDarjt"] {
        assert_eq!(find("hmac").expect("a preset").kind_of(said), "event", "{said}");
        assert_eq!(find("github").expect("a preset").kind_of(said), "github.event", "{said}");
    }
    assert_eq!(find("hmac").expect("a preset").kind_of("user.password:reset"), "user.password.reset");
}

#[test]
fn t061_two_woocommerce_deliveries_of_one_second_are_two_events() {
    let headers = [("x-wc-webhook-topic", "order.created"), ("x-wc-webhook-delivery-id", "d41d8cd9")];
    let id = |body: &str| sent("woocommerce", &headers, body).events()[0].0.clone();
    assert_ne!(id(r#"{"id":1}"#), id(r#"{"id":2}"#));
    assert_eq!(id(r#"{"id":1}"#), id(r#"{"id":1}"#));
}

#[test]
fn t062_a_batch_is_as_many_events_with_a_key_each_and_their_bytes_untouched() {
    let check = |sent: &Sent, events: &[(&str, &str, &str)]| {
        let told = sent.events();
        let told: Vec<(&str, &str, &str)> = told.iter().map(|(id, kind, body)| (&**id, &**kind, &**body)).collect();
        assert_eq!(told, events, "{}", sent.preset.name);
    };
    let a = r#"{"sg_event_id":"a","event":"open","n":1.50}"#;
    let b = r#"{ "sg_event_id": "b", "event": "bounce", "n": 123456789012345678901234567890 }"#;
    let body = format!("[{a}, {b}]\r\n");
    check(&sent("sendgrid", &[], &body), &[("a", "sendgrid.email.opened", a), ("b", "sendgrid.email.bounced", b)]);
    let item = r#"{"external_id":"7","topic":"event:klaviyo.opened_email"}"#;
    let told = sent("klaviyo", &[], &format!(r#"{{"data":[{item}],"meta":{{}}}}"#)).events();
    assert_eq!((told.len(), &*told[0].1, &*told[0].2), (1, "klaviyo.email.opened", item));
    let told = vector("t025").events();
    assert_eq!((told.len(), &*told[0].1), (1, "mandrill.email.opened"));
    let lead = r#"{"object":"page","id":"1","time":2,"field":"leadgen","value":{"leadgen_id":"444","name":"\u00e4"}}"#;
    check(&vector("Meta"), &[("444", "meta.lead.created", lead)]);
    let chat = r#"{"object":"page","entry":[{"id":"1","time":2,"messaging":[{"message":{"mid":"m1"}},{"message":{"mid":"m2"}}]}]}"#;
    let told = sent("meta", &[], chat).events();
    assert_eq!(
        told.iter().map(|(id, kind, _)| (&**id, &**kind)).collect::<Vec<_>>(),
        [("m1", "meta.message.received"), ("m2", "meta.message.received")]
    );
}

#[test]
fn a_second_try_of_hubspot_is_the_same_event() {
    let body =
        |attempt: u8| format!(r#"[{{"eventId":1,"subscriptionId":2,"occurredAt":3,"attemptNumber":{attempt}}}]"#);
    let id = |attempt: u8| sent("hubspot-v1", &[], &body(attempt)).events()[0].0.clone();
    assert_eq!(id(0), id(1));
}

#[test]
fn t046_providers_are_answered_as_they_demand() {
    for (name, ack) in
        [("paddle", 200), ("tiktok", 200), ("zoom", 200), ("woocommerce", 200), ("stripe", 202), ("hmac", 202)]
    {
        assert_eq!(find(name).expect("a preset").ack, ack, "{name}");
    }
}

#[test]
fn t028_a_lead_without_its_key_is_refused() {
    let missing = Err(Refusal::TokenMissing("/google_key".into()));
    for body in [r#"{"lead_id":"L1"}"#, r#"{"google_key":7}"#, r#"{"google_key":null}"#, "[]"] {
        assert_eq!(sent("google-ads", &[], body).answer(), missing, "{body}");
    }
    assert_eq!(sent("google-ads", &[], "no JSON").answer(), Err(Refusal::Body("JSON")));
    check("empty", &sent("google-ads", &[], r#"{"google_key":""}"#), Expected::Mismatch);
}

#[test]
fn t028_a_key_in_the_body_is_never_stored() {
    for preset in ALL {
        if let Scheme::Token(pointer) = (preset.scheme)() {
            assert!(preset.drop.contains(&pointer), "{}", preset.name);
        }
    }
}

#[test]
fn presets_are_listed_by_name_and_a_slip_of_the_pen_is_understood() {
    let names = ALL.map(|preset| preset.name);
    assert!(names.is_sorted());
    assert_eq!(find("hubspot-v3").expect("a preset").name, "hubspot-v3");
    let meant = |written: &str| find(written).expect_err("not a preset").meant;
    assert_eq!(meant("shopfy"), Some("shopify"));
    assert_eq!(meant("Stripe"), Some("stripe"));
    assert_eq!(meant("xyz"), None);
}

proptest! {
    #[test]
    fn verifying_and_reading_never_panic(
        preset in 0..ALL.len(),
        values in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 4),
        body in proptest::collection::vec(any::<u8>(), 0..200),
        url in ".{0,60}",
        now in any::<i64>(),
    ) {
        let preset = ALL[preset];
        let template = Sent::from(VECTORS.iter().find(|vector| vector.preset == preset.name).expect("a vector"));
        let names = (preset.scheme)().headers();
        let headers = names.into_iter().zip(values).collect();
        let now = now / 1_000_000;
        let sent = Sent { headers, body, url, now, ..template };
        prop_assert!(sent.answer().is_err());
        let _ = sent.request(|request| preset.events(request).map(|events| events.len()));
    }

    #[test]
    fn words_around_a_signature_never_panic(value in "[tvsh0-9=,; :.\"()@a-z]{0,60}", preset in 0..ALL.len()) {
        let preset = ALL[preset];
        let template = Sent::from(VECTORS.iter().find(|vector| vector.preset == preset.name).expect("a vector"));
        if let Some(name) = (preset.scheme)().headers().first() {
            prop_assert!(template.set(name, &value).answer().is_err());
        }
    }

    #[test]
    fn a_nearly_right_batch_never_panics(body in r#"[\[\]{}":,a-z0-9]{0,60}"#, preset in 0..ALL.len()) {
        let preset = ALL[preset];
        let template = Sent::from(VECTORS.iter().find(|vector| vector.preset == preset.name).expect("a vector"));
        let sent = Sent { body: body.into(), ..template };
        let _ = sent.request(|request| preset.events(request).map(|events| events.len()));
    }
}
