// Sends leads as the form vendor would: signed, and some of them twice.
// node send.mjs URL COUNT
import { createHmac } from 'node:crypto';

const [url = 'http://127.0.0.1:7400/intake/lead', count = '10'] = process.argv.slice(2);
const secret = process.env.FORM_SECRET;
if (!secret) throw new Error('set FORM_SECRET to what the server has');

const send = (lead) => {
  const body = JSON.stringify(lead);
  const time = String(Math.floor(Date.now() / 1000));
  const signature = createHmac('sha256', secret).update(`${time}.${body}`).digest('hex');
  const headers = { 'content-type': 'application/json', 'x-form-timestamp': time, 'x-form-signature': signature };
  return fetch(url, { method: 'POST', headers, body });
};

const told = {};
for (let n = 1; n <= Number(count); n += 1) {
  const lead = {
    form_id: 'pricing',
    submission_id: `s-${n}`,
    email: `lead${n}@example.com`,
    first_name: 'Lead',
    phone: '+1 202 555 0100',
    ip: '203.0.113.7',
    message: 'Please call me back.',
    user_agent: 'demo',
  };
  // An impatient vendor sends every other one twice.
  for (let time = 0; time < 1 + (n % 2); time += 1) {
    const answer = await send(lead);
    const what = answer.headers.get('idempotent-replayed') ? `${answer.status} again` : String(answer.status);
    told[what] = (told[what] ?? 0) + 1;
  }
}
console.log(JSON.stringify(told));
