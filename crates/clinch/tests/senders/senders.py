"""Those libraries that are Python's. A line asks, a line answers, as in senders.mjs."""

import json
import logging
import sys

import django
from django.conf import settings

settings.configure(ALLOWED_HOSTS=["*"])
django.setup()
logging.disable()

from anymail.exceptions import AnymailWebhookValidationFailure
from anymail.webhooks.mandrill import MandrillCombinedWebhookView
from django.test import RequestFactory


def mandrill(asked):
    headers = {name.lower(): value for name, value in asked["headers"].items()}
    request = RequestFactory().post(
        "/in/mandrill",
        data=asked["body"],
        content_type=headers["content-type"],
        headers={"X-Mandrill-Signature": headers["x-mandrill-signature"]},
    )
    view = MandrillCombinedWebhookView(webhook_key=asked["secret"], webhook_url=asked["url"])
    try:
        view.validate_request(request)
    except AnymailWebhookValidationFailure:
        return {"valid": False}
    return {"valid": True}


for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"mandrill": mandrill}[asked["library"]](asked)), flush=True)
