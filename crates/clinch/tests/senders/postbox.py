"""A mail server: takes mails of whoever logs in over TLS, and writes what it took, one line of JSON each."""

import asyncio
import email
import email.policy
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

certificate, key, implicit = sys.argv[1], sys.argv[2], sys.argv[3] == "implicit"
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(certificate, key)


class Handler:
    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        told = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "headers": {name: str(value) for name, value in mail.items()},
            "parts": {part.get_content_type(): part.get_content() for part in mail.walk() if not part.is_multipart()},
        }
        print(json.dumps(told), flush=True)
        return "250 2.0.0 taken"


def known(server, session, envelope, mechanism, data):
    return AuthResult(success=(data.login, data.password) == (b"shop", b"p@ss word"), handled=False)


def smtp():
    more = {} if implicit else {"tls_context": context, "require_starttls": True}
    return SMTP(Handler(), authenticator=known, auth_required=True, auth_require_tls=not implicit, **more)


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(smtp, "127.0.0.1", 0, ssl=context if implicit else None)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
