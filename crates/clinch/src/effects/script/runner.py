# Runs one script again and again, for one job at a time. Jobs come as lines of JSON over the socket that is our standard
# input, and answers go back the same way: standard output and error belong to the script.

import ast
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback

RESULT_CHARS_MAX = 16384

wire = socket.socket(fileno=os.dup(0))
nothing = os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
os.close(nothing)
environment = os.environ
base = dict(environment)
home = os.open(os.getcwd(), os.O_RDONLY)
sys.path[0] = os.getcwd()


def leave():
    os.killpg(0, signal.SIGKILL)


def watch(parent):
    # A script that never yields keeps us from seeing that the server is gone. This thread sees it.
    while os.getppid() == parent:
        time.sleep(1)
    leave()


threading.Thread(target=watch, args=(int(sys.argv[1]),), daemon=True).start()


def compiled(text):
    """The script as a function; what it imports first is imported once."""
    tree = ast.parse(text, "script")
    head = 0
    while head < len(tree.body) and is_head(tree.body[head]):
        head += 1
    body = tree.body[head:] or [ast.Pass(lineno=1, col_offset=0)]
    shell = ast.parse("def script(): pass", "script")
    shell.body[0].body = body
    shell.body = tree.body[:head] + shell.body
    names = {"__name__": "script", "__builtins__": __builtins__}
    exec(compile(ast.fix_missing_locations(shell), "script", "exec"), names)
    return names["script"]


def is_head(node):
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))


def set_environment(more):
    # A script may have put another in its place.
    os.environ = environment
    environment.clear()
    environment.update(base)
    environment.update(more)


def tell(message):
    wire.sendall(json.dumps(message).encode() + b"\n")


def described(error):
    # What is above the script is ours.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))[-RESULT_CHARS_MAX:]


text = None
script = None


def run(env):
    global script
    set_environment(env)
    os.fchdir(home)
    tell({"begun": True})
    try:
        if script is None:
            try:
                script = compiled(text)
            except Exception as error:
                # A module that was half imported stays so for the life of a process.
                return {"error": described(error), "spoiled": True}
        returned = script()
        return {} if returned is None else {"returned": json.dumps(returned)[:RESULT_CHARS_MAX]}
    except SystemExit as exit:
        return {} if exit.code in (None, 0) else {"error": "sys.exit(%s)" % (exit.code,)}
    except BaseException as error:
        return {"error": described(error)}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        set_environment({})


for line in wire.makefile("rb"):
    message = json.loads(line)
    if "script" in message:
        text = message["script"]
    elif time.monotonic() * 1e6 > message["by"]:
        tell({"late": message["no"]})
    else:
        began = time.monotonic()
        answer = run(message["env"])
        tell({"no": message["no"], "micros": int((time.monotonic() - began) * 1e6), **answer})
leave()
