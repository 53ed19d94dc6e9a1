// Stand-ins for whoever makes discount codes, one for each idempotency key, and for a mail server.
// node partner.mjs PORT MAIL-PORT
//
// `curl -X POST 127.0.0.1:PORT/_throttle/100` answers 429 to that many of a hundred customers, the same ones each time; `/_slow/300` takes
// so many milliseconds longer; `/_lose/5` makes the codes of that many of a hundred and never answers; `/_well` ends all of it. `GET /_seen`
// tells which codes were made, which mails came, and who called how often.
import http from 'node:http';
import net from 'node:net';

const codes = [];
const mails = [];
const calls = {};
const made = new Map();
let throttle = 0;
let slow = 0;
let lose = 0;

const read = async (request) => {
  let body = '';
  for await (const piece of request) body += piece;
  return body;
};
const of100 = (customer) => Number(customer.match(/\d+$/)) % 100;
const throttled = (customer) => of100(customer) < throttle;
const lost = (customer) => of100(customer) >= 100 - lose;

const partner = http.createServer(async (request, response) => {
  const body = await read(request);
  const answer = (status, what, headers = {}) => {
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end(JSON.stringify(what));
  };
  const [, verb, much] = request.url.match(/^\/_(throttle|slow|lose|well)(?:\/(\d+))?$/) ?? [];
  if (verb) {
    if (verb === 'throttle' || verb === 'well') throttle = Number(much ?? 0);
    if (verb === 'slow' || verb === 'well') slow = Number(much ?? 0);
    if (verb === 'lose' || verb === 'well') lose = Number(much ?? 0);
    return answer(200, { throttle, slow, lose });
  }
  if (request.url === '/_seen') return answer(200, { codes, mails, calls });
  if (request.url !== '/codes') return answer(404, { error: 'nothing is here' });
  const asked = JSON.parse(body);
  calls[asked.customer] = (calls[asked.customer] ?? 0) + 1;
  if (slow) await new Promise((done) => setTimeout(done, slow));
  if (throttled(asked.customer)) return answer(429, { error: 'too many requests' }, { 'retry-after': '1' });
  const key = request.headers['idempotency-key'];
  const known = made.get(key);
  const code = known ?? { ...asked, code: `SAVE${asked.percent}-${codes.length + 1}` };
  if (!known) {
    made.set(key, code);
    codes.push(code);
  }
  if (!lost(asked.customer)) answer(known ? 200 : 201, code);
});

const mail = net.createServer((socket) => {
  let heard = '';
  let to = '';
  let writing = false;
  const say = (line) => socket.write(`${line}\r\n`);
  socket.on('error', () => {});
  socket.on('data', (piece) => {
    heard += piece;
    for (;;) {
      const end = writing ? '\r\n.\r\n' : '\r\n';
      const at = heard.indexOf(end);
      if (at < 0) return;
      const said = heard.slice(0, at);
      heard = heard.slice(at + end.length);
      if (writing) {
        writing = false;
        mails.push({ to, subject: said.match(/^Subject: (.*)$/m)?.[1].trim(), id: said.match(/^Message-ID: (.*)$/im)?.[1].trim() });
        say('250 2.0.0 taken');
        continue;
      }
      const word = said.slice(0, 4).toUpperCase();
      if (word === 'RCPT') to = said.match(/<(.*)>/)?.[1] ?? '';
      if (word === 'DATA') writing = true;
      say({ EHLO: '250 8BITMIME', DATA: '354 go on', QUIT: '221 bye' }[word] ?? '250 fine');
      if (word === 'QUIT') socket.end();
    }
  });
  say('220 a stand-in');
});

const [port = '9002', mailPort = '9025'] = process.argv.slice(2);
mail.listen(Number(mailPort), '127.0.0.1', () => {
  partner.listen(Number(port), '127.0.0.1', () => {
    const at = (server) => `127.0.0.1:${server.address().port}`;
    console.log(`listening: smtp://${at(mail)} http://${at(partner)}`);
  });
});
