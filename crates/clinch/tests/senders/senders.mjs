// The providers' own libraries, and those of others, as senders and as checkers. Each line on standard input asks for one thing and is answered
// with one line: `{"headers": …}` from a library that signs, `{"valid": …}` from one that only checks, `{"requests": …}`.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { intercom } from "@activepieces/piece-intercom";
import { LinearWebhooks } from "@linear/sdk";
import * as github from "@octokit/webhooks-methods";
import { Environment, Paddle } from "@paddle/paddle-node-sdk";
import sendgrid from "@sendgrid/eventwebhook";
import "@shopify/shopify-api/adapters/node";
import { ApiVersion, shopifyApi } from "@shopify/shopify-api";
import { AwsLambdaReceiver } from "@zoom/rivet/users";
import { CloudEvent, HTTP } from "cloudevents";
import { Webhook } from "standardwebhooks";
import Stripe from "stripe";
import whatsapp from "./node_modules/whatsapp/build/utils.js";

// Standard output is for answers; Rivet talks.
console.debug = () => {};

const stripe = new Stripe("sk_test_none");
const shopify = (secret) =>
  shopifyApi({
    apiKey: "key",
    apiSecretKey: secret,
    apiVersion: ApiVersion.January25,
    hostName: "hooks.example.com",
    isEmbeddedApp: false,
    logger: { log: () => {} },
  });
const alone = (path) => createRequire(import.meta.url)(`./alone/${path}`);
const segment = alone("@segment/action-destinations/dist/destinations/webhook").default;
const lower = (headers) => Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));

// A node of n8n asks the workflow around it for what it needs.
const n8n = (name) => {
  const { verifySignature } = alone(`n8n-nodes-base/dist/nodes/${name}/${name}TriggerHelpers.js`);
  return ({ secret, body, headers }) => {
    const sent = lower(headers);
    const workflow = {
      getRequestObject: () => ({ rawBody: Buffer.from(body), header: (header) => sent[header] }),
      getHeaderData: () => sent,
      getWorkflowStaticData: () => ({ webhookSecret: secret }),
    };
    return { valid: verifySignature.call(workflow) };
  };
};

const libraries = {
  stripe: ({ secret, body, at }) => ({
    headers: { "stripe-signature": stripe.webhooks.generateTestHeaderString({ payload: body, secret, timestamp: at }) },
  }),
  standardwebhooks: ({ secret, body, at, id }) => ({
    headers: {
      "webhook-id": id,
      "webhook-timestamp": String(at),
      "webhook-signature": new Webhook(secret).sign(id, new Date(at * 1000), body),
    },
  }),
  github: async ({ secret, body }) => ({ headers: { "x-hub-signature-256": await github.sign(secret, body) } }),
  meta: ({ secret, body }) => ({
    headers: { "x-hub-signature-256": `sha256=${whatsapp.generateXHub256Sig(body, secret)}` },
  }),
  segment: ({ secret, body }) => ({
    headers: lower(segment.extendRequest({ settings: { sharedSecret: secret }, payload: { data: JSON.parse(body) } }).headers),
  }),
  calendly: n8n("Calendly"),
  typeform: n8n("Typeform"),
  zendesk: n8n("Zendesk"),
  intercom: ({ secret, body, headers }) => ({
    valid: intercom.events.verify({ payload: { headers: lower(headers), body: JSON.parse(body), rawBody: body }, webhookSecret: secret }),
  }),
  shopify: async ({ secret, body, headers }) => {
    const request = { method: "POST", url: "/in/shopify", headers: lower(headers) };
    const { valid } = await shopify(secret).webhooks.validate({ rawBody: body, rawRequest: request, rawResponse: {} });
    return { valid };
  },
  linear: ({ secret, body, headers }) => ({
    valid: new LinearWebhooks(secret).verify(Buffer.from(body), lower(headers)["linear-signature"], JSON.parse(body).webhookTimestamp),
  }),
  zoom: async ({ secret, body, headers }) => {
    const receiver = new AwsLambdaReceiver({ webhooksSecretToken: secret });
    const { statusCode, body: said } = await receiver.start()({ body, headers, isBase64Encoded: false }, {});
    return { valid: statusCode === 200, said: JSON.parse(said) };
  },
  paddle: async ({ secret, body, headers }) => {
    const paddle = new Paddle("key", { environment: Environment.sandbox });
    return { valid: await paddle.webhooks.isSignatureValid(body, secret, lower(headers)["paddle-signature"]) };
  },
  sendgrid: ({ secret, body, headers }) => {
    const webhook = new sendgrid.EventWebhook();
    const sent = lower(headers);
    const { SIGNATURE, TIMESTAMP } = sendgrid.EventWebhookHeader;
    const [signature, timestamp] = [SIGNATURE(), TIMESTAMP()].map((name) => sent[name.toLowerCase()]);
    return { valid: webhook.verifySignature(webhook.convertPublicKeyToECDSA(secret), body, signature, timestamp) };
  },
  cloudevents: ({ events }) => {
    const made = events.map((event) => new CloudEvent(event));
    return { requests: made.flatMap((event) => [HTTP.binary(event), HTTP.structured(event)]) };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  let told;
  try {
    told = await libraries[asked.library](asked);
  } catch (error) {
    // Some libraries refuse by throwing.
    told = { valid: false, error: String(error) };
  }
  process.stdout.write(JSON.stringify(told) + "\n");
}
