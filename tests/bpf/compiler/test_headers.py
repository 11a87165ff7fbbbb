"""The header tree: headers that other people's packet programs include, and refused ones."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpf import syscall
from bpf.abi import ProgType
from bpf.compiler import Compiled, CompileError, Compiler
from bpf.compiler.client import HEADERS
from tests.bpf.tools import PACKET

_LISTED = """
linux/types.h linux/bpf.h linux/in.h linux/in6.h linux/ip.h linux/ipv6.h linux/tcp.h linux/udp.h
linux/icmp.h linux/icmpv6.h linux/if_arp.h linux/if_ether.h linux/if_vlan.h linux/if_tunnel.h
linux/if_packet.h linux/if.h linux/netdevice.h linux/etherdevice.h linux/skbuff.h linux/string.h
linux/jhash.h linux/bitops.h linux/kernel.h linux/filter.h linux/pkt_cls.h linux/sctp.h linux/mpls.h
linux/ptrace.h linux/socket.h linux/sched.h linux/version.h linux/errno.h linux/igmp.h
linux/stddef.h uapi/linux/bpf.h
uapi/linux/icmp.h uapi/linux/if_arp.h uapi/linux/if_ether.h uapi/linux/if_vlan.h
uapi/linux/in.h uapi/linux/ip.h uapi/linux/ipv6.h uapi/linux/pkt_cls.h uapi/linux/ptrace.h
uapi/linux/tcp.h uapi/linux/udp.h net/ip.h net/ipv6.h net/sock.h net/inet_sock.h net/if.h
net/dsfield.h net/ethernet.h netinet/in.h netinet/ip.h netinet/ip6.h netinet/tcp.h netinet/udp.h
netinet/if_ether.h netinet/ip_icmp.h netinet/icmp6.h arpa/inet.h sys/socket.h sys/types.h
bcc/proto.h bcc/helpers.h bpf/bpf_helpers.h bpf/bpf_endian.h bpf_helpers.h bpf_endian.h vmlinux.h
stdint.h inttypes.h stdbool.h stddef.h string.h stdlib.h stdio.h errno.h endian.h asm/types.h
asm/byteorder.h
"""
NAMES = _LISTED.split()
BODY = "int f(struct xdp_md *ctx)\n{{\n    {}\n}}\n"


def compiled(compiler: Compiler, source: str, prog_type: ProgType = ProgType.XDP) -> Compiled:
    return compiler.compile(source, prog_type, name="my.c")


def result(compiler: Compiler, source: str, frame: bytes = PACKET) -> int:
    with compiled(compiler, source) as made:
        (program,) = made.programs.values()
        return syscall.prog_test_run(program.fd, frame).verdict


def refusal(compiler: Compiler, source: str) -> str:
    with pytest.raises(CompileError) as caught:
        compiled(compiler, source).close()
    return str(next(d for d in caught.value.diagnostics if d.severity == "error"))


@pytest.mark.parametrize("name", NAMES)
def test_a_header_can_be_included_alone(compiler: Compiler, name: str) -> None:
    with compiled(compiler, f"#include <{name}>\n" + BODY.format("return XDP_PASS;")) as made:
        assert made.diagnostics == ()


def test_all_of_them_can_be_included_together_in_either_order(compiler: Compiler) -> None:
    for order in (NAMES, list(reversed(NAMES))):
        text = "".join(f"#include <{name}>\n" for name in order)
        assert result(compiler, text + BODY.format("return XDP_PASS;")) == 2


def test_each_file_says_why_it_is_there_and_each_link_leads_somewhere() -> None:
    for path in HEADERS.rglob("*"):
        if path.is_symlink():
            assert path.exists(), path
        elif path.is_file():
            assert path.read_text().count("/*"), path


EXPRESSIONS = {
    "linux/if_vlan.h": "sizeof(struct vlan_hdr) + VLAN_HLEN + (VLAN_VID_MASK == 0xfff)",
    "linux/jhash.h": "1",
    "net/ip.h": "IP_MF == 0x2000 && IP_OFFSET == 0x1fff",
    "net/ipv6.h": "sizeof(struct frag_hdr) == 8 && NEXTHDR_FRAGMENT == 44",
    "linux/sctp.h": "sizeof(struct sctphdr) == 12",
    "net/ethernet.h": "sizeof(struct ether_header) == ETHER_HDR_LEN",
    "netinet/in.h": "IPPROTO_SCTP == 132 && IPPROTO_ICMPV6 == 58",
    "arpa/inet.h": "htons(1) == 256 && ntohl(1) == 1 << 24",
    "bpf/bpf_endian.h": "bpf_htons(1) == 256 && bpf_cpu_to_be64(1) == 1ULL << 56",
    "stdint.h": "sizeof(uint64_t) + sizeof(int8_t) == 9",
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_what_a_header_is_included_for_is_in_it(compiler: Compiler, name: str) -> None:
    assert result(
        compiler, f"#include <{name}>\n" + BODY.format(f"return !!({EXPRESSIONS[name]});")
    )


def _rol(word: int, shift: int) -> int:
    return (word << shift | word >> 32 - shift) & 0xFFFFFFFF


def jenkins(key: bytes, initval: int) -> int:
    """Bob Jenkins' lookup3, as the kernel's jhash() has it."""
    mask = 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + len(key) + initval) & mask

    def words(block: bytes) -> tuple[int, ...]:
        return struct.unpack("<3I", block.ljust(12, b"\0"))

    while len(key) > 12:
        x, y, z = words(key[:12])
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        for first, second in ((4, 6), (16, 19)):
            a = (a - c & mask) ^ _rol(c, first if first == 4 else 16)
            c = (c + b) & mask
            b = (b - a & mask) ^ _rol(a, second)
            a = (a + c) & mask
            c = (c - b & mask) ^ _rol(b, 8 if first == 4 else 4)
            b = (b + a) & mask
        key = key[12:]
    x, y, z = words(key)
    a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
    for shift in (14, 11, 25, 16, 4, 14, 24):
        # c, a and b take turns.
        c, a, b = a, b, ((c ^ b) - _rol(b, shift)) & mask
    return b


@pytest.mark.parametrize("size", [1, 4, 12, 13, 37])
def test_jhash_gives_what_the_kernels_does(compiler: Compiler, size: int) -> None:
    key = bytes((i * 7 + 3) % 256 for i in range(size))
    listed = ", ".join(map(str, key))
    body = f"u8 key[{size}] = {{ {listed} }};\n    return jhash(key, {size}, 5);"
    assert result(compiler, "#include <linux/jhash.h>\n" + BODY.format(body)) == jenkins(key, 5)


def test_a_program_of_libbpf_without_maps_runs_under_its_own_licence(compiler: Compiler) -> None:
    source = """\
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

SEC("xdp")
int only_ip(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    struct ethhdr *eth = data;

    if (data + sizeof(*eth) > (void *)(long)ctx->data_end)
        return XDP_ABORTED;
    bpf_printk("a frame of %d", eth->h_proto);
    return eth->h_proto == bpf_htons(ETH_P_IP) ? XDP_PASS : XDP_DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
__u32 _version SEC("version") = 1;
"""
    with compiled(compiler, source) as made:
        program = made.programs["only_ip"]
        assert program.license == "Dual MIT/GPL"
        assert made.diagnostics == ()
        frames = bytes(12) + b"\x08\x00" + bytes(50), PACKET
        assert [syscall.prog_test_run(program.fd, f).verdict for f in frames] == [2, 1]


def test_a_frame_is_read_with_bccs_packet_headers(compiler: Compiler) -> None:
    """By bcc/proto.h's bit fields and cursor; a TC program's."""
    source = """\
#include <bcc/proto.h>

int f(struct __sk_buff *skb)
{
    u8 *cursor = 0;
    struct ethernet_t *ethernet = cursor_advance(cursor, sizeof(*ethernet));
    if (ethernet->type != 0x0800)
        return 0;
    struct ip_t *ip = cursor_advance(cursor, sizeof(*ip));
    return ip->nextp;
}
"""
    with compiled(compiler, source, ProgType.SCHED_CLS) as made:
        frame = bytes(12) + b"\x08\x00\x45" + bytes(8) + b"\x2a" + bytes(60)
        assert syscall.prog_test_run(made.programs["f"].fd, frame).verdict == 42


REFUSED = {
    "the kernel's packet": (
        "#include <linux/skbuff.h>\nint f(@struct sk_buff *skb) { return 0; }\n",
        "'sk_buff' is unavailable: a packet program gets a struct __sk_buff",
    ),
    "the kernel's socket": (
        "#include <net/sock.h>\n" + BODY.format("@struct sock *sk = 0;\n    return !sk;"),
        "'sock' is unavailable: a packet program gets a struct bpf_sock, by its helpers",
    ),
    "libbpf's maps": (
        "#include <bpf/bpf_helpers.h>\nstruct {\n    @__uint(type, BPF_MAP_TYPE_HASH);\n"
        '    __type(key, __u32);\n} m SEC(".maps");\n' + BODY.format("return 2;"),
        "declare maps by bcc's macros, such as BPF_HASH(name, key, value, size)",
    ),
    "a header that there isn't": (
        "#include <linux/types.h>\n#include @<linux/netfilter_x.h>\n" + BODY.format("return 2;"),
        "'linux/netfilter_x.h' file not found; available headers: packet.h",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_packet_programs_cannot_have_is_told_at_its_place(
    compiler: Compiler, what: str
) -> None:
    text, reason = REFUSED[what]
    before, after = text.split("@")
    said = refusal(compiler, before + after)
    assert said.startswith(f"my.c:{before.count(chr(10)) + 1}:")
    assert reason in said


SECRET = "SECRET-OF-ROOT"
DOORS = {
    "quotes": '#include "{}"\n',
    "brackets": "#include <{}>\n",
    "climbing": "#include <../../../../../../../../../..{}>\n",
    "a macro": '#define HEADER "{}"\n#include HEADER\n',
    "a comment before": '#/**/include "{}"\n',
    "a digraph": '%:include "{}"\n',
    "import": '#import "{}"\n',
    "the assembler": 'asm(".include \\"{}\\"");\n',
    "the assembler's data": 'asm(".incbin \\"{}\\"");\n',
    "does it exist": '#if __has_include("{0}")\n#error it exists\n#else\n#error "{0}"\n#endif\n',
    "a line's file": '#line 1 "{}"\n',
}


@pytest.mark.parametrize("door", DOORS)
def test_no_file_but_headers_can_be_read(compiler: Compiler, tmp_path: Path, door: str) -> None:
    """Neither a source nor its diagnostics show the file."""
    secret = tmp_path / "secret.h"
    secret.write_text(f"{SECRET} 1\n{SECRET} 2\n{SECRET} 3\n")
    body = BODY.format("u8 *p = (void *)(long)ctx->data;\n    return p[3];")
    with pytest.raises(CompileError) as caught:
        compiled(compiler, DOORS[door].format(secret) + body).close()
    said = "\n".join(map(str, caught.value.diagnostics)) + caught.value.verifier_log
    assert "SECRET" not in said
    assert "exists" not in said
    if door != "a line's file":
        assert str(secret) in said
