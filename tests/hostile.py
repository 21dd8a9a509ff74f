"""Hostile answers: texts that attack a judge which evaluates them, and code that attacks the walls if it ever runs."""

# --- Texts: PLACE is a path that must not come to exist ---

_ACTS = [
    "__import__('os').system('touch PLACE')",
    "open('PLACE', 'w')",
    "exec(bytes([BYTES]))",
    "eval(bytes([BYTES]))",
    "__import__('os').open('PLACE', 65)",
    "__import__('pathlib').Path('PLACE').touch()",
    "__import__('os').write(1, b'{}')",
    "__import__('os')._exit(0)",
    "__import__('os').kill(__import__('os').getppid(), 9)",
    "__import__('socket').create_connection(('127.0.0.1', 9))",
    "globals()['__builtins__']['open']('PLACE', 'w')",
    "print.__self__.open('PLACE', 'w')",
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'FileIO'][0]('PLACE', 'w')",
    "__import__('sys')._getframe(1).f_locals.update(reward=1.0)",
    "setattr(__import__('builtins'), 'float', lambda x: 1.0)",
    "compile(bytes([BYTES]), '', 'exec')",
    "getattr(__builtins__, 'open')('PLACE', 'w')",
    "breakpoint()",
]
_FULLWIDTH = {code: code + 0xFEE0 for code in [*range(0x41, 0x5B), *range(0x61, 0x7B)]}
_BOLD = {**{0x41 + i: 0x1D400 + i for i in range(26)}, **{0x61 + i: 0x1D41A + i for i in range(26)}}


def _spelled(act: str) -> list[str]:
    return [
        act,
        _outside_quotes(act, _FULLWIDTH),
        _outside_quotes(act, _BOLD),
        f"[{act}]",
        f"(lambda: {act})()",
        f"[{act} for _ in (1,)]",
        f"(x := {act})",
        f'f"{{{act}}}"',
        f"[1, 2] if {act} else [3]",
        f"{{**{act}}}",
        rf"\text{{{act}}}",
    ]


def _outside_quotes(act: str, letters: dict[int, int]) -> str:
    """Write the names in other letters that Python reads as the same names; texts in quotes stay."""
    parts = act.split("'")
    return "'".join(part if place % 2 else part.translate(letters) for place, part in enumerate(parts))


def texts(place: str) -> list[str]:
    """Return the texts that run code where they are evaluated, in many spellings."""
    code = ", ".join(str(byte) for byte in f"open({place!r}, 'w')".encode())
    acts = [act.replace("PLACE", place).replace("BYTES", code) for act in _ACTS]
    return [text for act in acts for text in _spelled(act)]


def bombs() -> list[str]:
    """Return the texts that take all memory, all time or all of the stack to read or to compare."""
    deep = 1_900
    return [
        "9**9**9**9", "9^{9^{9^{9}}}", "10^{10^{10}}", "2^" * 600 + "2", "(10^9)!", "100000!!!!", "((9^9)!)!",
        r"\binom{10^9}{5 \cdot 10^8}", r"\sum_{k=1}^{10^9} \frac{1}{k^2}", r"\prod_{k=1}^{10^8} k", r"\int_0^1 x^x dx",
        r"\int e^{e^{e^x}} \sin(x^x) dx", r"\lim_{x \to \infty} x^{x^x} / e^{x^x}", "(x+y+z+u+v+w)^{900}",
        "(a+b)^{99999}", r"\sqrt{" * 300 + "2" + "}" * 300, r"\frac{1}{" * 200 + "1" + "}" * 200,
        "x^{" * 400 + "}" * 400,
        r"\begin{pmatrix}" + r" 1 & 2 \\" * 120 + r"\end{pmatrix}^{50}", r"\log" * 400 + "{2}", r"\sin " * 400 + "1",
        "(" * deep, ")" * deep, "{" * deep, "[" * deep, "(" * 900 + "1" + ")" * 900, "[" * 900 + "]" * 900,
        "-" * deep + "1", "~" * deep + "1", "+".join("1" * 900), "*".join(["9" * 9] * 190), "1," * 950, "1" * deep,
        "0." + "3" * deep, "1e999999999", "1e-999999999", "-" + "9" * 999 + "." + "9" * 900, "7/" * 900 + "7",
        "1_" * 900 + "1", "0x" + "f" * deep, "[0] * 10**10", "'a' * 10**10", "'%1000000000d' % 1", "(1,) * 10**9",
        "10**10**10 % 7", "1 << 10**12", "2 ** -(10**10)", "[[[]] * 10**6] * 10**6", "{1: 2} | {3: 4}", "not 1", "...",
        "nan", "inf", "oo", "zoo", "-oo", "oo - oo", r"\infty", "True", "None", "C", "x", "E**E**E**E**E", "I**I**I**I",
        "factorial(factorial(99999))", "sin(" * 180 + "1" + ")" * 180, "Rational(1, 0)", "log(0)", "1/0", "0**0**-1",
        "\x00" * 900, "\ud800", "\u202e24", "\u0662\u0664", "\uff12\uff14", "24\u200b", "\U0001d7d0\U0001d7d2", "²⁴",
        "\\" * deep, "$" * deep, "%" * deep, "&" * 900, "\\begin{" * 200, r"\def\a{\a\a}\a", r"\input{/etc/passwd}",
        r"\write18{touch x}", r"\csname a\endcsname", "#" * deep, "'''", '"""', "\\u0032\\u0034", "b'24'", "lambda: 24",
    ]  # fmt: skip


# --- Code: what could happen if an answer were run after all; numbers of system calls are those of x86_64 ---

# One a line; `|` stands for a line break.
_FILES = """
open(PLACE + '/new', 'w')
open(PLACE + '/new', 'xb')
open(PLACE + '/victim', 'a')
open(PLACE + '/victim', 'r+')
os.open(PLACE + '/new', os.O_WRONLY+os.O_CREAT)
os.open(PLACE + '/new', os.O_RDWR+os.O_CREAT)
os.open(PLACE + '/victim', os.O_RDONLY+os.O_TRUNC)
os.open(PLACE + '/victim', os.O_APPEND+os.O_WRONLY)
os.open(PLACE, os.O_TMPFILE+os.O_RDWR)
os.open(PLACE + '/new', os.O_CREAT+os.O_RDONLY)
os.mkdir(PLACE + '/new')
os.rmdir(PLACE)
os.unlink(PLACE + '/victim')
os.remove(PLACE + '/victim')
os.rename(PLACE + '/victim', PLACE + '/new')
os.replace(PLACE + '/victim', PLACE + '/new')
os.symlink('victim', PLACE + '/new')
os.link(PLACE + '/victim', PLACE + '/new')
os.truncate(PLACE + '/victim', 0)
os.chmod(PLACE + '/victim', 0)
os.chown(PLACE + '/victim', 1, 1)
os.utime(PLACE + '/victim', (0, 0))
os.mkfifo(PLACE + '/new')
os.mknod(PLACE + '/new')
os.setxattr(PLACE + '/victim', 'user.a', b'b')
import shutil; shutil.rmtree(PLACE)
import sqlite3; sqlite3.connect(PLACE + '/new').execute('create table a (b)')
import tempfile; tempfile.NamedTemporaryFile(dir=PLACE, delete=False)
import pathlib; pathlib.Path(PLACE, 'new').write_text('x')
import logging; logging.FileHandler(PLACE + '/new')
import mmap; mmap.mmap(os.open(PLACE + '/victim', os.O_RDWR), 6)[:6] = b'wicked'
libc.syscall(85, (PLACE + '/new').encode(), 0o600)
libc.syscall(2, (PLACE + '/new').encode(), 65, 0o600)
libc.syscall(437, -100, (PLACE + '/new').encode(), (ctypes.c_uint64 * 3)(65, 0o600, 0), 24)
libc.syscall(425, 8, ctypes.create_string_buffer(120))
libc.creat((PLACE + '/new').encode(), 0o600)
os.memfd_create('x')
from multiprocessing import shared_memory; shared_memory.SharedMemory(create=True, size=9)
libc.shmget(7, 4096, 0o1777)
open('/dev/shm/palmette-hostile', 'w')
open('/proc/self/oom_score_adj', 'w')
open('/proc/self/mem', 'r+b').write(b'x')
open('/proc/self/mem', 'rb')
open('/etc/passwd').read()
os.listdir('/')
os.chroot(PLACE)
os.chdir(PLACE); open('new', 'w')
os.sendfile(0, 0, 0, 9)
"""
_PROCESSES = """
os.fork()
os.forkpty()
os.system('touch ' + PLACE + '/new')
os.popen('touch ' + PLACE + '/new')
subprocess.run(['touch', PLACE + '/new'])
os.posix_spawn('/bin/sh', ['sh'], {})
os.execv('/bin/sh', ['sh'])
os.spawnv(os.P_NOWAIT, '/bin/sh', ['sh'])
libc.syscall(56, 17, 0, 0, 0, 0)
libc.syscall(58)
libc.syscall(435, (ctypes.c_uint64 * 11)(), 88)
libc.syscall(57)
libc.syscall(322, -100, b'/bin/sh', 0, 0, 0)
libc.vfork()
while True:|    os.fork()
threading.Thread(target=forge, args=([bytes(16)],)).start()
threading.Timer(0.05, forge, [[bytes(16)]]).start(); time.sleep(0.1)
import _thread; _thread.start_new_thread(forge, ([b''],))
import multiprocessing as m; m.Process(target=print).start()
from concurrent import futures; futures.ProcessPoolExecutor().submit(print).result()
os.kill(parent, signal.SIGKILL)
os.kill(-1, signal.SIGKILL)
os.kill(0, signal.SIGKILL)
os.killpg(0, 9)
os.kill(parent, signal.SIGSTOP)
libc.syscall(62, parent, 9)
libc.syscall(234, parent, parent, 9)
signal.pidfd_send_signal(os.pidfd_open(parent), 9)
libc.syscall(438, os.pidfd_open(parent), 1, 0)
libc.ptrace(16, parent, 0, 0)
libc.ptrace(0, 0, 0, 0)
libc.syscall(310, parent, 0, 0, 0, 0, 0)
libc.syscall(311, parent, 0, 0, 0, 0, 0)
libc.syscall(302, parent, 9, (ctypes.c_uint64 * 2)(0, 0), 0)
os.setpriority(os.PRIO_PROCESS, parent, 19)
os.sched_setaffinity(parent, [0])
os.setsid()
os.setuid(0)
os.nice(-20)
libc.unshare(0x10000000)
libc.mount(b'none', b'/', b'tmpfs', 0, 0)
libc.syscall(321, 0, 0, 0)
libc.syscall(298, 0, 0, 0, 0, 0)
libc.syscall(250, 0, 0)
libc.syscall(175, 0, 0, b'')
libc.prctl(4, 1, 0, 0, 0)
libc.syscall(323, 0)
libc.sethostname(b'x', 1)
libc.reboot(0)
libc.personality(0x0040000)
"""
_NETWORK = """
socket.create_connection(('127.0.0.1', PORT))
socket.socket()
socket.socket(socket.AF_INET6)
socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')
socket.socketpair()
socket.getaddrinfo('localhost', 80)
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))
socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
import urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{PORT}')
libc.socket(2, 1, 0)
libc.syscall(41, 2, 1, 0)
import asyncio; asyncio.run(asyncio.open_connection('127.0.0.1', PORT))
import http.client; http.client.HTTPConnection('127.0.0.1', PORT).request('GET', '/')
"""
_FORGERS = """
forge([bytes(16)])
forge([b''])
forge([b'', b''])
os.write(0, b'cc')
os.write(0, b'c' * 60000)
os.write(0, b'c\\x0a')
os.write(0, b'c')
os.close(0)
os.dup2(0, 1); os.write(1, b'c')
os.dup(0)
forge([thing for thing in gc.get_objects() if isinstance(thing, bytes) and len(thing) == 16])
forge([value for f in sys._current_frames().values() for value in f.f_locals.values() if type(value) is bytes])
f = sys._getframe()|while f:| forge([value for value in f.f_locals.values() if type(value) is bytes])| f = f.f_back
open(f'/proc/{parent}/fd/1', 'wb').write(bytes(16) + b'c')
open(f'/proc/{parent}/fd/0', 'rb').read(16)
open(f'/proc/{parent}/mem', 'rb')
[os.open(f'/proc/{parent}/fd/{n}', os.O_WRONLY) for n in range(9)]
forge([os.read(0, 16)])
import fcntl; fcntl.fcntl(0, 1031, 1 << 20)
import fcntl; fcntl.ioctl(0, 0x5412, b'c')
sys.modules['palmette.score.worker'].OUTCOMES[b'w'] = 'correct'
os._exit(0)
os._exit(1)
sys.exit(0)
import atexit; atexit.register(forge, [b''])
raise SystemExit
raise KeyboardInterrupt
os.abort()
signal.signal(signal.SIGXCPU, signal.SIG_IGN); forge([b'c'])
"""
_BOMBS = """
while True:|    pass
time.sleep(10**6)
bytearray(16 << 30)
x = [0]|while True:|    x += x
def f():|    f()|f()
sys.setrecursionlimit(10**9)|def f():|    f()|f()
ctypes.string_at(0)
9**9**9
x = {}|for i in range(10**12):|    x[i] = [i] * 1000
signal.pause()
signal.alarm(0)|while True:|    pass
import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); bytearray(16 << 30)
input()
[open(__import__('json').__file__) for _ in range(10**6)]
__import__('faulthandler')._sigsegv()
signal.signal(signal.SIGTERM, signal.SIG_IGN)|while True:| try:|  time.sleep(9)| except BaseException:|  pass
"""
CODES = [
    code.replace("|", "\n")
    for block in (_FILES, _PROCESSES, _NETWORK, _FORGERS, _BOMBS)
    for code in block.strip().splitlines()
]
