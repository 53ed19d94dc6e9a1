// Stand-ins for the two partners: a CRM that makes one lead for each idempotency key, and an analytics collector.
// `curl -X POST 127.0.0.1:PORT/_down/crm` breaks one, `/_up/crm` repairs it, `GET /_seen` tells what they have got.
import http from 'node:http';

const seen = { crm: [], analytics: [] };
const leads = new Map();
const down = new Set();

const read = async (request) => {
  let body = '';
  for await (const piece of request) body += piece;
  return body;
};

const server = http.createServer(async (request, response) => {
  const body = await read(request);
  const answer = (status, what) => {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(what));
  };
  const [, verb, name] = request.url.match(/^\/_(down|up)\/(crm|analytics)$/) ?? [];
  if (verb) {
    if (verb === 'down') down.add(name);
    else down.delete(name);
    return answer(200, { down: [...down] });
  }
  if (request.url === '/_seen') return answer(200, seen);
  const partner = { '/leads': 'crm', '/events': 'analytics' }[request.url];
  if (!partner) return answer(404, { error: 'nothing is here' });
  if (down.has(partner)) return answer(503, { error: 'down' });
  const key = request.headers['idempotency-key'];
  const first = leads.get(key);
  if (partner === 'crm' && first) return answer(200, first);
  seen[partner].push({ key, body: JSON.parse(body) });
  const made = { id: `${partner}-${seen[partner].length}` };
  if (partner === 'crm') leads.set(key, made);
  answer(201, made);
});

server.listen(Number(process.argv[2] ?? 9001), '127.0.0.1', () => {
  console.log(`partners listen on http://127.0.0.1:${server.address().port}`);
});
