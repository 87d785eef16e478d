use super::*;

fn entry(text: &str) -> Entry {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn text_and_entry_correspond() {
    for text in [
        "10.0.0.1",
        "fd00::1",
        "10.0.0.1,tcp:80",
        "10.0.0.1,udp:53",
        "10.0.0.1,sctp:65535",
        "10.0.0.1,udplite:7",
        "10.0.0.1,icmp:8/0",
        "fd00::1,icmpv6:128/255",
        "10.0.0.1,47:0",
        "10.0.0.1,tcp:80,10.0.0.2",
        "fd00::1,tcp:80,fd00::2",
        "10.0.0.1,tcp:80,10.1.0.0/16",
        "10.0.0.1,tcp:80,10.1.2.3/32",
        "fd00::1,tcp:80,fd00::/8",
        "0",
        "65535",
    ] {
        assert_eq!(entry(text).to_string(), text);
    }
}

#[test]
fn the_shape_decides_the_type() {
    let types = ["10.0.0.1", "::,tcp:1", "::,tcp:1,::", "::,tcp:1,::/9", "9"]
        .map(|text| entry(text).set_type().to_string());
    let wanted = ["hash:ip", "hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net", "bitmap:port"];
    assert_eq!(types, wanted);
}

#[test]
fn a_set_of_networks_reads_an_address_as_a_network() {
    let text = "10.0.0.1,tcp:80,10.0.0.2";
    let read = Entry::parse_for(SetType::HashIpPortNet, text).unwrap();
    assert_eq!(read.to_string(), "10.0.0.1,tcp:80,10.0.0.2/32");
    let read = Entry::parse_for(SetType::HashIpPortIp, text).unwrap();
    assert_eq!(read.to_string(), text);
    let error = Entry::parse_for(SetType::HashIp, text).unwrap_err();
    assert!(error.to_string().contains("hash:ip"), "{error}");
}

#[test]
fn what_is_not_an_entry_is_said() {
    for (text, part) in [
        ("", "`` is not an address"),
        ("65536", "`65536` is not an address"),
        ("10.0.0.1,80", "`80` is not `protocol:port`"),
        ("10.0.0.1,tcp:http", "`http` is not a port of tcp"),
        ("10.0.0.1,tcp:70000", "`70000` is not a port of tcp"),
        ("10.0.0.1,icmp:8", "`8` is not a port of icmp"),
        ("10.0.0.1,xtp:8", "`xtp` is not a protocol"),
        ("10.0.0.1,tcp:80,x", "`x` is not an address"),
        ("10.0.0.1,tcp:80,10.0.0.0/33", "is not a network"),
        ("10.0.0.1,tcp:80,::/0,1", "more than three parts"),
    ] {
        let error = text.parse::<Entry>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_network_has_no_bits_past_its_prefix() {
    let network = |text: &str| text.parse::<Network>().unwrap();
    assert_eq!(network("10.1.2.3/8"), network("10.0.0.0/8"));
    assert_eq!(network("10.1.2.3/0").to_string(), "0.0.0.0/0");
    assert_eq!(network("fd00:1::ff/32").to_string(), "fd00:1::/32");
    assert_eq!(network("fd00::ff/0").to_string(), "::/0");
    assert_eq!(network("fd00::ff/128"), Network::host("fd00::ff".parse().unwrap()));
    assert!(Network::new(IpAddr::from([10, 0, 0, 1]), 33).is_none());
    assert!(Network::new(IpAddr::from([0; 16]), 129).is_none());
}

#[test]
fn an_entry_is_small() {
    assert!(size_of::<Entry>() <= 40, "{}", size_of::<Entry>());
}
