"""On a real terminal (a pseudo-terminal): colour, rich's table, harmless logs, and the shell in raw mode."""

import json
import os
import pty
import select
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from tests.cli.conftest import JOB_ID, START, job
from tests.cli.scripted import events, page, problem
from tests.serving import serving
from tests.waiting import patience, wait_until


class Terminal:
    """A command running on a pseudo-terminal, and everything that it has shown so far."""

    def __init__(self, *argv: str, columns: int = 120, rows: int = 40) -> None:
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        command = [sys.executable, "-I", "-c", START, *argv]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        self.slave = slave
        self.shown = b""

    def read(self) -> bytes:
        """Take in what is there now and return all that was shown."""
        while select.select([self.master], [], [], 0)[0]:
            self.shown += os.read(self.master, 65536)
        return self.shown

    def wait_for(self, text: bytes) -> None:
        wait_until(lambda: text in self.read(), what=f"{text!r} on the terminal")

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def resize(self, columns: int, rows: int) -> None:
        ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.process.pid, 28)  # SIGWINCH, which a terminal sends to its foreground group

    def end(self) -> int:
        wait_until(
            lambda: self.read() is not None and self.process.poll() is not None, what="the command's end"
        )
        self.read()
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(patience(10))
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(settings) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*argv: str, **options: Any) -> Terminal:
        opened.append(Terminal(*argv, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_table_is_coloured_on_a_terminal(server, terminal):
    server.on("GET", "projects/team-a/jobs", page(job()))
    shown = terminal("list", "jobs")
    assert shown.end() == 0
    assert b"\x1b[32mrunning" in shown.shown
    assert b"\x1b[1mNAME" in shown.shown


def test_no_color_is_obeyed(server, terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    server.on("GET", "projects/team-a/jobs", page(job()))
    shown = terminal("list", "jobs")
    assert shown.end() == 0
    assert b"running" in shown.shown
    assert b"\x1b" not in shown.shown


def test_a_log_keeps_colour_and_loses_the_rest(server, terminal):
    text = "\x1b[31mred\x1b[0m \x1b]0;pwned\x07\x1b[2J"
    lines = [{"n": 1, "time": "t", "stream": "stdout", "text": text}]
    server.on("GET", f"jobs/{JOB_ID}/logs", {"lines": lines, "next_offset": 0, "gaps": []})
    shown = terminal("logs", JOB_ID)
    assert shown.end() == 0
    assert shown.shown == b"\x1b[31mred\x1b[0m ^[]0;pwned^G^[[2J\x1b[0m\r\n"


PROGRESS = (
    '{"trainyard": 1, "epoch": 7, "epochs": 80, "step": 165, "total_steps": 1920, "loss": 0.40219, '
    '"accuracy": 0.97306, "seconds_per_step": 0.012838, "gpu_utilization": 0.6}'
)


def test_progress_is_spelt_out_on_a_terminal_alone(server, terminal, yard_process):
    lines = [{"n": 1, "time": "t", "stream": "stdout", "text": PROGRESS}]
    server.on("GET", f"jobs/{JOB_ID}/logs", {"lines": lines, "next_offset": 0, "gaps": []})
    spelt, raw = terminal("logs", JOB_ID), terminal("logs", JOB_ID, "--raw", columns=400)
    assert spelt.end() == raw.end() == 0
    assert spelt.shown == b"epoch 7/80  step 165/1920  loss 0.4022  accuracy 0.973  0.013 s/step\r\n"
    assert raw.shown.decode() == f"{PROGRESS}\r\n"
    assert yard_process("logs", JOB_ID).stdout == f"{PROGRESS}\n"


def test_ctrl_d_at_a_prompt_of_login_is_no_traceback(server, terminal):
    server.on("GET", "whoami", problem(401, "not_logged_in", "Log in."))
    for prompt, words in ((b"Username:", ()), (b"Password:", ("--username", "ana"))):
        asked = terminal("login", server.url, *words)
        asked.wait_for(prompt)
        asked.type(b"\x04")
        assert asked.end() == 2
        assert b"given, nothing was stored" in asked.shown
        assert b"Traceback" not in asked.shown
    assert {asked.path for asked in server.asked} == {"/api/v1/whoami"}


def test_login_finds_a_dead_server_before_it_asks_for_a_password(server, terminal):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    dead = terminal("login", f"http://127.0.0.1:{port}")
    assert dead.end() == 6
    assert b"Username" not in dead.shown
    foreign = terminal("login", server.url)  # it answers 404: nothing is scripted
    assert foreign.end() == 6
    assert b"not a Trainyard server" in foreign.shown


def test_watch_redraws_on_a_change_and_ends_with_ctrl_c(server, terminal):
    server.on("GET", "projects/team-a/jobs", page(job(state="queued")), page(job(state="succeeded")))
    server.on("GET", "watch", events(("change", {})))
    shown = terminal("list", "jobs", "--watch")
    shown.wait_for(b"\x1b[32msucceeded")
    assert shown.read().count(b"\x1b[H\x1b[J") == 2
    shown.process.send_signal(2)
    assert shown.end() == 0


@contextmanager
def shell_server(handler: Callable[[ServerConnection], None]) -> Iterator[str]:
    with serve(handler, "127.0.0.1", 0) as server, serving(server):
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


class Shell:
    """The other end: records what arrives, echoes bytes, ends at `exit`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.texts: list[str] = []
        self.typed = b""

    def __call__(self, connection: ServerConnection) -> None:
        self.requests.append(connection.request)
        try:
            for message in connection:
                if isinstance(message, str):
                    self.texts.append(message)
                    continue
                self.typed += message
                connection.ping()
                connection.send([b"<", message, b">"])  # a message in three fragments
                if b"exit" in self.typed:
                    connection.send('{"op": "exit", "exit_code": 9}')
        except ConnectionClosed:
            return


def test_a_shell_sends_keys_raw_with_the_window_size_and_exits_with_its_code(terminal, monkeypatch):
    shell = Shell()
    with shell_server(shell) as url:
        monkeypatch.setenv("TRAINYARD_URL", url)
        shown = terminal("bash", JOB_ID, "--rank", "2", columns=100, rows=30)
        wait_until(lambda: shell.requests, what="the shell's opening")
        assert shell.requests[0].path == f"/ws/shell/{JOB_ID}?rank=2&columns=100&rows=30"
        assert shell.requests[0].headers["Authorization"] == "Bearer the-token"
        wait_until(shown.is_raw, what="raw keys")  # what was typed before is dropped
        shown.type(b"\x03")  # Ctrl-C goes to the shell and does not end yard
        shown.wait_for(b"<\x03>")
        shown.resize(80, 24)
        wait_until(lambda: '{"op": "resize", "columns": 80, "rows": 24}' in shell.texts, what="the new size")
        shown.type("exit é".encode())
        assert shown.end() == 9
    after = termios.tcgetattr(shown.slave)
    assert after[3] & termios.ICANON  # the terminal is as it was
    assert after[3] & termios.ECHO


class Command:
    """The other end of `exec`: records the request and the input, and answers at the input's end."""

    def __init__(self, exit_code: int | None = 0) -> None:
        self.exit_code = exit_code
        self.paths: list[str] = []
        self.typed = b""

    def __call__(self, connection: ServerConnection) -> None:
        self.paths.append(connection.request.path)
        for message in connection:
            if isinstance(message, bytes):
                self.typed += message
                continue
            assert json.loads(message) == {"op": "end_of_input"}
            connection.send(b"\x01out " + self.typed)
            connection.send(b"\x02bad\n")
            connection.send(json.dumps({"op": "exit", "exit_code": self.exit_code}))


def test_a_shell_without_a_terminal_is_plain_bytes_both_ways(yard_process, monkeypatch):
    command = Command()
    with shell_server(command) as url:
        monkeypatch.setenv("TRAINYARD_URL", url)
        ran = yard_process("bash", JOB_ID, input="nvidia-smi\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "out nvidia-smi\n", "bad\n")
    assert command.paths == [f"/ws/exec/{JOB_ID}?rank=0"]


@pytest.mark.parametrize(("theirs", "ours"), [(0, 0), (3, 3), (127, 127), (None, 1)])
def test_exec_passes_words_outputs_and_the_exit_code(yard_process, monkeypatch, theirs, ours):
    command = Command(theirs)
    with shell_server(command) as url:
        monkeypatch.setenv("TRAINYARD_URL", url)
        ran = yard_process("exec", JOB_ID, "--rank", "2", "--", "echo", "a b", "-x", input="not for it")
    assert (ran.returncode, ran.stdout, ran.stderr) == (ours, "out ", "bad\n")
    assert command.paths == [f"/ws/exec/{JOB_ID}?rank=2&command=echo&command=a+b&command=-x"]


def test_exec_with_input(yard_process, monkeypatch):
    with shell_server(Command()) as url:
        monkeypatch.setenv("TRAINYARD_URL", url)
        assert (
            yard_process("exec", JOB_ID, "-i", "--", "cat", input="x" * 200_000).stdout
            == "out " + "x" * 200_000
        )


def test_exec_without_standard_input(yard, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as Python starts where the descriptor is closed
    with shell_server(Command()) as url:
        monkeypatch.setenv("TRAINYARD_URL", url)
        assert yard("exec", JOB_ID, "--", "true").code == 0


def test_exec_without_a_command_says_where_to_put_it(yard):
    ran = yard("exec", "hyper1")
    assert ran.code == 2
    assert "give the command after --" in ran.err


def test_a_port_that_the_job_did_not_declare(server, yard):
    server.on("GET", f"jobs/{JOB_ID}", job() | {"ports": [{"port": 8888}]})
    ran = yard("port-forward", JOB_ID, "80")
    assert (ran.code, ran.err) == (
        5,
        "yard: hyper1 declares no port 80\n  submit it with --port 80, or use 8888\n",
    )
    for nonsense in ("x", "1:2:3", "70000", "0"):
        assert yard("port-forward", JOB_ID, nonsense).code == 2


@pytest.mark.parametrize(
    ("code", "exit_code"), [("not_running", 5), ("signed_out", 4), ("engine_unreachable", 6), ("x", 1)]
)
def test_a_shell_that_is_refused_in_words(yard_process, monkeypatch, code, exit_code):
    def refuse(connection: ServerConnection) -> None:
        connection.send(f'{{"op": "error", "code": "{code}", "detail": "Not now."}}')
        connection.close(4409)

    with shell_server(refuse) as url:
        monkeypatch.setenv("TRAINYARD_URL", url)
        ran = yard_process("bash", JOB_ID, input="")
    assert (ran.returncode, ran.stderr) == (exit_code, f"yard: Not now. ({code})\n")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 1_000_000])
def test_messages_of_every_length_against_another_implementation(size):
    from controlplane.cli.websocket import BINARY, connect

    def echo(connection: ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    payload = os.urandom(size)
    with shell_server(echo) as url:
        socket = connect(url, "/ws/shell/x", {})
        socket.send(BINARY, payload)
        messages: list[tuple[int, bytes]] = []
        wait_until(lambda: messages or messages.extend(socket.receive()), what="the echo")
        socket.close()
    assert messages == [(BINARY, payload)]


def test_a_refused_shell_is_4(yard_process, monkeypatch):
    from http import HTTPStatus

    def refuse(connection: ServerConnection, request: Any) -> Any:
        return connection.respond(HTTPStatus.FORBIDDEN, "no")

    server = serve(lambda connection: None, "127.0.0.1", 0, process_request=refuse)
    with server, serving(server):
        monkeypatch.setenv("TRAINYARD_URL", f"http://127.0.0.1:{server.socket.getsockname()[1]}")
        ran = yard_process("bash", JOB_ID, input="")
    assert ran.returncode == 4
    assert "refused" in ran.stderr


def test_a_server_without_websockets_is_no_shell(server, yard_process):
    ran = yard_process("bash", JOB_ID, input="")
    assert ran.returncode == 3
