"""Attacks and loads as operators meet them, outside the tests. By them, five policies changed:
`ack_flood`, `amplification`, `dns_tunnel`, `icmp_sweep` and `tcp_flood`.
"""

from __future__ import annotations

from tests.support.made.attacks import (
    EVERYBODY,
    INSIDER,
    NETWORK,
    SSH,
    TLS,
    UPLOADER,
    Attack,
    bots,
    datagrams,
    flood,
    in_fragments,
    logins,
    portless,
    reflected,
    refused,
    scan,
    slow_requests,
    sweep,
    tunnel,
    upload,
    web_flood,
)
from tests.support.made.loads import HOSTS, NAT, PAGE, answers, asked, flows
from tests.support.made.traffic import (
    ATTACKER,
    CLIENT,
    ECHO_REPLY,
    ECHO_REQUEST,
    ICMP,
    MORE_FRAGMENTS,
    SERVER,
    UDP,
    A,
    F,
    Make,
    P,
    R,
    S,
    U,
    among,
    answered,
    anywhere,
    both,
    bursts,
    each,
    incoming,
    ports,
    shuffled,
    some,
    stream,
    talks,
)

ATTACKS = (
    Attack(
        "fragment_flood",
        "UDP, both parts",
        stream(
            6000,
            src=some(300),
            proto=UDP,
            sport=ports,
            dport=53,
            fragment=among(MORE_FRAGMENTS, 185),
            size=1514,
        ),
    ),
    Attack(
        "syn_ack_flood", "2,000 web servers", flood(4000, S | A, ports, sport=443, src=some(2000))
    ),
    Attack("udp_flood", "QUIC initials, forged", datagrams(9000, 443, 1242)),
    Attack(
        "icmp_tunnel",
        "40 large pings",
        tunnel(40, 900, proto=ICMP, sport=7, dport=ECHO_REQUEST),
        INSIDER,
        ATTACKER,
        seconds=6,
    ),
    Attack("port_scan", "30 ports a second, refused", refused(scan(30, S)), ATTACKER, seconds=5),
    Attack("port_scan", "FIN", scan(200, F), ATTACKER),
    Attack("port_scan", "Xmas", scan(150, F | P | U), ATTACKER),
    Attack("slow_scan", "a port every 2 s", scan(0.5, S), ATTACKER, seconds=120),
    Attack("worm", "RDP, 2 sources", sweep(200, 3389, S, sources=2), 0, 0),
    Attack("brute_force", "RDP", logins(20, 3389), ATTACKER),
    Attack("brute_force", "FTP, 60 sources", logins(40, 21, src=some(60)), 0),
    Attack(
        "dns_tunnel",
        "80 TXT a second",
        tunnel(80, 220, proto=UDP, sport=5353, dport=53),
        INSIDER,
        ATTACKER,
    ),
    Attack(
        "dns_amplification", "ANY, 4 kB", in_fragments(reflected(900, 400, 53, 1514, dport=ports))
    ),
    Attack("amplification", "memcached, 50", reflected(3000, 50, 11211, 1428, dport=80)),
    Attack("amplification", "CLDAP", reflected(1500, 400, 389, 1500)),
    Attack("amplification", "NTP monlist", reflected(4000, 600, 123, 482)),
    Attack("amplification", "WS-Discovery", reflected(1500, 300, 3702, 1200)),
    Attack("slowloris", "100 sources", slow_requests(200, 100)),
    Attack("http_flood", "500 bots, TLS", web_flood(2500, 500, TLS)),
    Attack("syn_flood", "three ports", flood(2000, S, each(8443, 3))),
    Attack("syn_flood", "from a /16", flood(3000, S, 25565, src=some(9000, bits=16))),
    Attack("rst_flood", "to 22", flood(3000, R, 22)),
    Attack(
        "icmp_flood", "echo, forged", portless(2500, ICMP, 98, dport=ECHO_REQUEST, src=anywhere)
    ),
    Attack(
        "udp_flood",
        "a /25, port 123",
        datagrams(4500, 123, 468, src=some(800), dst=shuffled(NETWORK, 128)),
        destination=0,
    ),
    Attack("worm", "SMB, 20 sources", sweep(200, 445, S, sources=20), 0, 0),
    Attack("icmp_sweep", "80 hosts a second", sweep(80, ECHO_REQUEST, protocol=ICMP), ATTACKER, 0),
    Attack("udp_scan", "60 ports a second", scan(60, 0, UDP), ATTACKER, seconds=4),
    Attack("dns_water_torture", "2,000 resolvers", datagrams(4000, 53, 95, src=some(2000))),
    Attack("ack_flood", "200 bots to 80", flood(5000, A, 80, **bots(200))),
    Attack(
        "outgoing_volume",
        "70 Mbit/s, 443",
        upload(5900, dport=443, src=UPLOADER, size=1514),
        UPLOADER,
        ATTACKER,
        seconds=34,
    ),
    Attack(
        "dhcp_storm",
        "starvation",
        stream(400, proto=UDP, src=0, sport=68, dst=EVERYBODY, dport=67, size=300),
        0,
        EVERYBODY,
    ),
    Attack("udp_flood", "SIP OPTIONS, 40 bots", datagrams(4000, 5060, 430, **bots(40))),
)

_MAIL = ">S <SA >A <PA:90 >PA:80 <PA:120 >PA:1400*6 <A >FA <FA >A"
_SCRAPE = ">S <SA >A >PA:250 <PA:1514*12 >A*4 >FA <FA >A"
_HEALTH = ">S <SA >A >PA:120 <PA:180 >FA <FA >A"


def back(make: Make) -> Make:
    """The packets of the other way only."""
    return lambda seconds, random: answered(make(seconds, random))


LOADS: dict[str, Make] = {
    "backup to storage": flows(2, 9000, 3000, size=1514, dport=873),
    "backup, 20 clients at night": flows(20, 12000, 4000, size=1514, dport=9102),
    "NTP burst of a rack": bursts(asked(800, 123, 90, 90, src=some(300, HOSTS, 9)), 10, 1),
    "NTP server of an ISP": asked(2500, 123, 90, 90, src=some(4000)),
    "crawler, 3 sites a second": talks(40, PAGE, src=CLIENT, dst=some(120)),
    "search engine's crawl of us": incoming(talks(80, PAGE, src=some(30))),
    "mail queue runs": talks(60, _MAIL, src=CLIENT, dst=some(400), dport=25),
    "incoming mail, greylisted": talks(
        50, ">S <SA >A <PA:90 >PA:80 <PA:100 >FA <FA >A", src=some(600), dport=25
    ),
    "video call, 8 people": flows(
        8, 1600, 1600, proto=UDP, flags=0, size=1000, down_size=1000, dport=3478
    ),
    "webinar, 1 to 400": flows(
        400, 400, 20000, proto=UDP, flags=0, size=80, down_size=1100, dport=50002
    ),
    "health checks of a load balancer": talks(
        120, _HEALTH, src=among(CLIENT, CLIENT + 1), dst=each(HOSTS, 60), dport=8080
    ),
    "TCP checks, connect and reset": talks(
        80, ">S <SA >A >RA", src=among(CLIENT, CLIENT + 1), dst=each(HOSTS, 40), dport=8443
    ),
    "checks of hosts that are down": talks(20, ">S", src=CLIENT, dst=each(HOSTS, 5), dport=8080),
    "NAT gateway of an office": both(
        talks(120, TLS, src=NAT, dst=some(300)), asked(60, 53, src=NAT)
    ),
    "NAT64 of a campus": both(
        talks(300, TLS, src=each(NAT, 4), dst=some(900)), asked(200, 53, src=each(NAT, 4))
    ),
    "CI runners fetch": talks(
        30, TLS + " <A:1514*60 >A*30", spread=1, src=each(HOSTS, 12), dst=some(20)
    ),
    "CI pulls images": flows(12, 4000, 9000, down_size=1514, dport=5000),
    "resolver of a campus": both(
        asked(1500, 53, 78, 160, src=some(3000, HOSTS, 13)), answers(900, 600)
    ),
    "resolver, DNSSEC": both(
        asked(300, 53, 90, 900, src=some(300, HOSTS, 9)),
        stream(300, proto=UDP, src=SERVER, sport=ports, dst=some(300), dport=53, size=90),
        answers(300, 300, (400, 1400)),
    ),
    "Prometheus, 300 targets": talks(20, _SCRAPE, src=CLIENT, dst=each(HOSTS, 300), dport=9100),
    "SNMP poll of switches": bursts(
        asked(600, 161, 95, 300, src=CLIENT, dst=each(HOSTS, 120)), 30, 3
    ),
    "port knocking": stream(
        1, src=CLIENT, sport=ports, dst=SERVER, dport=among(7000, 8000, 9000), flags=S, size=60
    ),
    "TLS renegotiation of an old client": flows(30, 900, 900, size=180, down_size=220, dport=443),
    "QUIC downloads, 40": flows(
        40, 2000, 9000, proto=UDP, flags=0, size=80, down_size=1292, dport=443
    ),
    "QUIC, new clients": talks(
        300, ">:1242 <:1242*2 >:1242 >:80*3 <:1200*6", proto=UDP, src=some(4000), dport=443
    ),
    "WireGuard road warriors": flows(
        60, 4000, 6000, proto=UDP, flags=0, size=500, down_size=1300, dport=51820
    ),
    "iSCSI": flows(2, 7000, 9000, size=1514, down_size=1514, dport=3260),
    "Ceph": flows(24, 9000, 9000, size=1514, down_size=400, dport=6800),
    "Kafka": flows(16, 5000, 5000, size=1300, down_size=1300, dport=9092),
    "PostgreSQL, new connection each": talks(
        250, ">S <SA >A >PA:200 <PA:400 >PA:150 <PA:900 >FA <FA >A", src=each(HOSTS, 8), dport=5432
    ),
    "Redis pipelines": flows(40, 9000, 9000, size=200, down_size=160, dport=6379),
    "etcd and Kubernetes API": flows(60, 1500, 2500, size=260, down_size=900, dport=6443),
    "Kubernetes, DNS with search domains": asked(600, 53, 95, 170, src=each(HOSTS, 30)),
    "git push by many": talks(
        6, SSH + " >A:1514*80 <A*40", spread=1, src=each(HOSTS, 10), dport=22
    ),
    "monitoring by SSH": talks(
        4, SSH + " >PA:100*4 <PA:300*4", spread=0.5, src=CLIENT, dst=each(HOSTS, 40), dport=22
    ),
    "ping monitor of 200 hosts": bursts(
        both(
            stream(100, proto=ICMP, src=CLIENT, dst=each(HOSTS, 200), dport=ECHO_REQUEST, size=84),
            stream(100, proto=ICMP, dst=CLIENT, src=each(HOSTS, 200), dport=ECHO_REPLY, size=84),
        ),
        10,
        2,
    ),
    "path MTU discovery": stream(15, proto=ICMP, src=some(10), dst=SERVER, dport=0x0304, size=590),
    "RTP recorder": flows(120, 6000, proto=UDP, flags=0, size=214, dport=30000),
    "game server starts": talks(
        80, ">:60 <:300 >:90*6 <:120*6", proto=UDP, src=some(500), dport=27015
    ),
    "syslog by TCP": flows(60, 3000, 300, size=400, dport=6514),
    "IPTV, multicast": stream(
        6000, proto=UDP, src=SERVER, sport=5004, dst=0xEF010101, dport=5004, size=1370
    ),
    "print jobs": flows(3, 3000, 900, size=1514, dport=9100),
    "LDAP binds at nine": bursts(
        talks(
            300,
            ">S <SA >A >PA:120 <PA:80 >PA:200 <PA:500 >FA <FA >A",
            src=some(400, HOSTS, 10),
            dport=389,
        ),
        30,
        5,
    ),
    "a browser opens 60 tabs": bursts(talks(60, PAGE, src=CLIENT, dst=some(80)), 30, 1),
    "push to 5,000 web sockets, 400 a second": both(
        flows(5000, 400, dport=443), back(flows(5000, 400, size=150, flags=P | A, dport=443))
    ),
    "push to 5,000 web sockets, 900 a second": both(
        flows(5000, 900, dport=443), back(flows(5000, 900, size=150, flags=P | A, dport=443))
    ),
    "MQTT sensors": talks(
        40, ">S <SA >A >PA:90 <PA:70 >PA:120 >FA <FA >A", src=some(900, HOSTS, 12), dport=1883
    ),
}
