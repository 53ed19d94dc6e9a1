// Logging in by a provider of identities, in a browser that keeps cookies by its own rules: the provider is another site.
import assert from 'node:assert/strict';
import { createHash, generateKeyPairSync, sign } from 'node:crypto';
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { World, shot } from './world.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
const part = value => Buffer.from(JSON.stringify(value)).toString('base64url');
const codes = new Map();
let issuer, url, world, groups = ['ops'];

function minted(asked) {
  const now = Math.floor(Date.now() / 1000);
  const claims = { iss: url, sub: 'u-1', aud: 'clinch', iat: now, exp: now + 300, nonce: asked.get('nonce'), preferred_username: 'maya', groups };
  const signed = `${part({ alg: 'ES256', kid: 'k' })}.${part(claims)}`;
  return `${signed}.${sign('sha256', Buffer.from(signed), { key: privateKey, dsaEncoding: 'ieee-p1363' }).toString('base64url')}`;
}

before(async () => {
  issuer = createServer((request, response) => {
    const asked = new URL(request.url, url);
    const tell = body => response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (asked.pathname.startsWith('/.well-known/')) return tell({ issuer: url, authorization_endpoint: `${url}/authorize`, token_endpoint: `${url}/token`, jwks_uri: `${url}/keys` });
    if (asked.pathname === '/keys') return tell({ keys: [{ ...publicKey.export({ format: 'jwk' }), kid: 'k' }] });
    if (asked.pathname === '/authorize') {
      const code = `c-${codes.size}`;
      codes.set(code, asked.searchParams);
      const back = `${asked.searchParams.get('redirect_uri')}?code=${code}&state=${asked.searchParams.get('state')}`;
      return response.writeHead(200, { 'content-type': 'text/html' }).end(`<a href="${back.replace('&', '&amp;')}">I am Maya</a>`);
    }
    if (asked.pathname !== '/token') return response.writeHead(404).end();
    let text = '';
    request.on('data', more => { text += more; });
    request.on('end', () => {
      const form = new URLSearchParams(text), first = codes.get(form.get('code'));
      assert.equal(createHash('sha256').update(form.get('code_verifier')).digest('base64url'), first.get('code_challenge'));
      tell({ id_token: minted(first) });
    });
  });
  const port = await new Promise(done => issuer.listen(0, '127.0.0.1', () => done(issuer.address().port)));
  url = `http://127.0.0.1:${port}`;
  world = await World.start(`\noidc: {issuer: '${url}', client_id: clinch, roles: {claim: groups, map: {ops: operator}}}\n`);
});
after(async () => { await world?.stop(); issuer?.close(); issuer?.closeAllConnections(); });

test('k1 somebody logs in by a provider on another site, and is brought to the page that was wanted', async () => {
  // To the browser, localhost and 127.0.0.1 are two sites.
  const console = world.url.replace('127.0.0.1', 'localhost');
  const page = await (await world.browser.newContext()).newPage();
  await page.goto(`${console}/dead`);
  await shot(page, 'login-oidc');
  await page.evaluate(axe);
  const told = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  assert.deepEqual(told.violations.filter(fault => ['serious', 'critical'].includes(fault.impact)).map(fault => fault.id), []);
  await page.getByRole('link', { name: 'Log in with' }).click();
  await page.getByRole('link', { name: 'I am Maya' }).click();
  await page.waitForURL(`${console}/dead`);
  assert.equal((await page.context().cookies()).map(cookie => `${cookie.name} ${cookie.sameSite}`).join(), '__Host-clinch Strict');
  await page.getByRole('heading', { name: 'Dead letters' }).waitFor();
});

test('k1 who has no role is told so, and whom to ask', async () => {
  groups = [];
  const page = await (await world.browser.newContext()).newPage();
  await page.goto(`${world.url.replace('127.0.0.1', 'localhost')}/login`);
  await page.getByRole('link', { name: 'Log in with' }).click();
  await page.getByRole('link', { name: 'I am Maya' }).click();
  await page.getByRole('alert').filter({ hasText: 'nobody has given you a role here' }).waitFor();
  await shot(page, 'login-oidc-refused');
});
