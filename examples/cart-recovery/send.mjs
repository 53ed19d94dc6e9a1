// Sends abandoned carts as the shop does: signed, and every one of them twice.
// node send.mjs URL COUNT [MORE]      MORE is JSON that each cart gets, such as '{"total": 900}'
import { createHmac, randomUUID } from 'node:crypto';

const [url = 'http://127.0.0.1:7400/in/shop', count = '10', more = '{}'] = process.argv.slice(2);
const secret = process.env.SHOP_SECRET;
if (!secret) throw new Error('set SHOP_SECRET to what the server has');

const send = (cart, id) => {
  const body = JSON.stringify(cart);
  const headers = {
    'content-type': 'application/json',
    'x-shopify-topic': 'carts/abandoned',
    'x-shopify-webhook-id': id,
    'x-shopify-hmac-sha256': createHmac('sha256', secret).update(body).digest('base64'),
  };
  return fetch(url, { method: 'POST', headers, body });
};

// Customers who are up, wherever the sun is now. `Etc/GMT-3` is three hours east.
const east = 13 - new Date().getUTCHours();
const noon = `Etc/GMT${east < 0 ? '+' : '-'}${Math.abs(east)}`;

const told = {};
for (let n = 1; n <= Number(count); n += 1) {
  const customer = `c-${n}`;
  const cart = {
    customer_id: customer,
    store_id: 7,
    timestamp: new Date().toISOString(),
    email: `${customer}@example.com`,
    total: n % 5 === 0 ? 900 : 120,
    agreed: ['email'],
    time_zone: noon,
    ...JSON.parse(more),
  };
  // A shop sends again what it is not sure of. Half of it comes under the same id, the other half under another.
  const id = randomUUID();
  for (const each of [id, n % 2 === 0 ? randomUUID() : id]) {
    const answer = await send(cart, each);
    const what = answer.headers.get('idempotent-replayed') ? `${answer.status} again` : String(answer.status);
    told[what] = (told[what] ?? 0) + 1;
  }
}
console.log(JSON.stringify(told));
