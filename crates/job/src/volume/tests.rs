use super::*;

const ID: &str = "000102030405060708090a0b0c0d0e0f";

fn policy(anchor: &str, freshness: &str) -> String {
    format!(
        "version = 1\nvolume = \"{ID}\"\nsuite = \"aes-256-gcm\"\nconfidentiality = true\nintegrity = true\nfreshness = \"{freshness}\"\nsize = 4096\n\
         {anchor}\nformat-if-blank = true\n[anchor-options]\nca-file = \"/o/ca.pem\"\nkey-file = \"/o/client.key\"\nrequest-timeout-ms = \"4000\"\n"
    )
}

fn refusal(anchor: &str) -> String {
    Plan::of(&policy(&format!("anchor = \"{anchor}\""), "strict"), 0).unwrap_err()
}

#[test]
fn the_guest_reaches_the_owner_s_service_by_a_port_of_its_own() {
    let plan = Plan::of(&policy("anchor = \"owner:owner.example:7443/ledger\"", "strict"), 3).unwrap();
    assert_eq!(plan.id, ID);
    assert_eq!(plan.routes, [Route { port: 7004, host: "owner.example".into(), to: 7443 }]);
    assert_eq!(plan.anchor_files().collect::<Vec<_>>(), [Path::new("/o/ca.pem"), Path::new("/o/client.key")]);
    let grant = plan.grant(Path::new("/o/key"), |path| {
        Ok(Zeroizing::new(format!("content of {}", path.display()).into_bytes()))
    });
    let sent = serde_json::to_vec(&grant.unwrap()).unwrap();
    let grant = Grant::parse(&sent).unwrap();
    assert_eq!(grant.names(), ["owner.example"]);
    let files = grant.files(Path::new("/run/v")).unwrap();
    let content = |name: &str| {
        let file = files.iter().find(|file| file.name == name).unwrap();
        String::from_utf8(file.content.to_vec()).unwrap()
    };
    assert_eq!(content(KEY), "content of /o/key");
    assert_eq!(
        content("key-file"),
        "content of /o/client.key",
        "the anchor's key is another than the volume's"
    );
    let policy: toml::Table = content(POLICY).parse().unwrap();
    assert_eq!(policy["anchor"].as_str(), Some("owner:owner.example:7004/ledger"));
    assert_eq!(policy["anchor-options"]["ca-file"].as_str(), Some("/run/v/ca-file"));
    assert_eq!(policy["anchor-options"]["request-timeout-ms"].as_str(), Some("4000"));
    assert_eq!((policy["size"].as_integer(), policy["format-if-blank"].as_bool()), (Some(4096), Some(true)));
}

#[test]
fn members_of_a_cluster_have_a_port_each_even_where_they_listen_on_the_same() {
    let address = "anchor = \"etcd:https://h1:2379,https://h2:2379,https://h3/cvmio/a\"";
    let plan = Plan::of(&policy(address, "interval"), 0).unwrap();
    let route = |port, host: &str| Route { port, host: host.into(), to: 2379 };
    assert_eq!(plan.routes, [route(7001, "h1"), route(7002, "h2"), route(7003, "h3")]);
    assert!(
        plan.policy.contains("etcd:https://h1:7001,https://h2:7002,https://h3:7003/cvmio/a"),
        "{}",
        plan.policy
    );
}

/// V2.
#[test]
fn an_anchor_that_the_host_could_roll_back_is_refused() {
    assert!(Plan::of(&policy("", "off"), 0).unwrap_err().contains("no anchor"));
    let named_all_the_same = policy("anchor = \"owner:h:1/a\"", "off");
    assert!(Plan::of(&named_all_the_same, 0).unwrap_err().contains("no anchor"));
    assert!(Plan::of(&policy("", "strict"), 0).unwrap_err().contains("no anchor"));
    for address in ["file:/a", "tpm:/dev/tpmrm0,0x01800100", "memory:", "a"] {
        assert!(refusal(address).contains("would lie in the guest"), "{address}: {}", refusal(address));
    }
    assert!(refusal("etcd:http://127.0.0.1:2379/a").contains("without TLS"));
    assert!(refusal("etcd:https://h:1,http://h:2/a").contains("without TLS"));
}

#[test]
fn nothing_but_a_name_reaches_ssh_or_the_table_of_hosts() {
    for host in ["-oProxyCommand=x", "a b", "a\\nb", "", "[::1]", "a,b", "*"] {
        let said = refusal(&format!("owner:{host}:7443/a"));
        assert!(said.contains("is refused"), "{host}: {said}");
    }
    assert!(refusal("owner:10.0.0.7:7443/a").contains("by a name only"));
    assert!(refusal("owner:h/a").contains("no port") && refusal("owner:h:0/a").contains("no port"));
    assert!(refusal("owner:h:1").contains("no volume") && refusal("etcd:https://h:1").contains("no key"));
    let many = vec!["https://h:1"; MAX_ENDPOINTS + 1].join(",");
    assert!(refusal(&format!("etcd:{many}/a")).contains("more than"));
    let loopback = Plan::of(&policy("anchor = \"owner:127.0.0.1:7443/a\"", "strict"), 0).unwrap();
    assert!(loopback.names.is_empty() && loopback.routes[0].host == "127.0.0.1");
}

#[test]
fn what_arrives_is_checked() {
    let grant = |files: &str, names: &str| {
        format!("{{\"policy\": \"\", \"key\": \"\", \"files\": {files}, \"names\": {names}}}")
    };
    assert!(Grant::parse(grant("{}", "[]").as_bytes()).is_ok());
    for (files, names) in [
        ("{\"../x-file\": \"\"}", "[]"),
        ("{\"policy.toml\": \"\"}", "[]"),
        ("{\"key\": \"\"}", "[]"),
        ("{}", "[\"a b\"]"),
        ("{}", "[\"a\\nb\"]"),
        ("[]", "[]"),
    ] {
        assert!(Grant::parse(grant(files, names).as_bytes()).is_err(), "{files} {names}");
    }
    let bad = Grant::parse(grant("{\"a-file\": \"*\"}", "[]").as_bytes()).unwrap();
    assert!(bad.files(Path::new("/d")).is_err());
    assert!(Plan::of("version = ", 0).unwrap_err().contains("no TOML"));
    assert!(Plan::of("version = 1", 0).unwrap_err().contains("no attach policy"));
    assert!(
        Plan::of(&policy("anchor = \"owner:h:1/a\"", "strict").replace(ID, "00"), 0)
            .unwrap_err()
            .contains("32")
    );
}

#[test]
fn a_stamp_is_read_from_what_cvmio_prints() {
    let shown = r#"{"anchor": "x", "stamp": {"volume": "ab", "state": "released", "generation": 7, "head": "cd", "claims": 2,
        "session": "ef", "header-digest": "01", "moved-to": null}, "facts": {}}"#;
    let stamp = Stamp::shown(shown.as_bytes()).unwrap().unwrap();
    assert_eq!((stamp.generation, stamp.claims, stamp.state.as_str()), (7, 2, "released"));
    assert_eq!(Stamp::shown(br#"{"anchor": "x", "stamp": null, "facts": {}}"#).unwrap(), None);
    for other in ["", "[]x", r#"{"stamp": {"volume": 1}}"#] {
        assert!(Stamp::shown(other.as_bytes()).is_err(), "{other}");
    }
}
