use std::collections::BTreeSet;

use super::*;
use crate::Configuration;
use crate::reference::FLAGS_ONLY;

fn read(words: &[&str]) -> Result<Arguments, Answer> {
    parse(["kube-ipvs"].iter().chain(words).map(OsString::from))
}

fn wrong(words: &[&str]) -> String {
    match read(words) {
        Err(Answer::Wrong(text)) => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

#[test]
fn the_arguments_are_consistent() {
    command().debug_assert();
}

#[test]
fn every_flag_has_a_type_and_a_description_and_none_has_two() {
    let typed = Arguments::augment_args(Command::new("typed"));
    let of_clap = typed.get_arguments().filter(|arg| arg.get_help().is_some());
    assert_eq!(of_clap.map(Arg::get_id).next(), None, "the reference has all help");
    let names = typed.get_arguments().filter_map(Arg::get_long).chain(["help"]);
    let of_no_field = FLAGS_ONLY.iter().filter_map(|setting| Some(setting.flag?.name));
    assert_eq!(names.collect::<BTreeSet<_>>(), of_no_field.collect());
    let flags = flags::all();
    let command = command();
    let names = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    assert_eq!(names.collect::<BTreeSet<_>>(), flags.keys().copied().collect());
    for entry in flags.values() {
        let is_set = Documents::default().set_flag(entry.flag.name, "").is_some();
        assert_eq!(is_set, !entry.setting.path.is_empty(), "{entry:?}");
    }
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with(char::is_uppercase), "{}: {help:?}", arg.get_id());
        let default = flags[arg.get_long().unwrap()].default.as_str();
        let is_told = help.replace('\n', " ").contains(&format!("[default: {default}]"));
        assert!(default.is_empty() || is_told, "{}: {help}", arg.get_id());
    }
}

#[test]
fn the_help_of_a_flag_stands_alone() {
    let flags = flags::all();
    for (name, help) in [
        (
            "cleanup",
            "Removes all kernel state of kube-ipvs and kube-proxy, and exits\n[default: false] \
             [with --config: applies]",
        ),
        (
            "drain-deadline",
            "Time for connections to a removed endpoint to end before they are cut; in iptables \
             mode, for the connections left from IPVS mode\n[default: 15m0s] [with --config: \
             overrides drainDeadline]",
        ),
        (
            "iptables-min-sync-period",
            "In iptables and userspace modes: Minimum time between two writes; changes in between are \
             written together\n\
             [default: 1s] [with --config: replaced by iptables.minSyncPeriod]",
        ),
        (
            "ipvs-min-sync-period",
            "In IPVS mode: Minimum time between two writes; changes in between are written together\n\
             [default: 1s] [with --config: replaced by ipvs.minSyncPeriod]",
        ),
        (
            "metrics-port",
            "Deprecated: port of --metrics-bind-address if it has none; 0 is rejected, as by \
             kube-proxy\n[default: 10249] [with --config: ignored]",
        ),
        ("show-hidden-metrics-for-version", "No effect: kube-ipvs has no hidden metrics"),
    ] {
        assert_eq!(flags[name].help(), help);
    }
    // Lines are broken between words.
    let effect = flags["nodeport-addresses"].setting.to_string();
    let lines = command().render_long_help().to_string();
    assert!(lines.lines().all(|line| line.len() <= HELP_WIDTH), "{lines}");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!lines.contains(&effect) && words(&lines).contains(&effect), "{lines}");
}

#[test]
fn booleans_are_as_in_go() {
    for (word, value) in [
        ("--masquerade-all", true),
        ("--masquerade-all=true", true),
        ("--masquerade_all=T", true),
        ("--masquerade-all=0", false),
        ("--masquerade-all=false", false),
    ] {
        let arguments = read(&[word]).unwrap();
        let document = Configuration::load(&arguments).unwrap().document;
        assert_eq!(document.iptables.masquerade_all, value, "{word}");
    }
    assert_eq!(read(&[]).unwrap().value("masquerade-all"), None);
    assert!(wrong(&["--masquerade-all=maybe"]).contains("neither true nor false"));
    // A boolean's value needs the equals sign, as in Go; without it, it is an argument.
    assert!(wrong(&["--masquerade-all", "false"]).contains("unexpected argument 'false'"));
}

#[test]
fn values_may_be_anything() {
    let arguments = read(&[
        "--oom-score-adj",
        "-998",
        "--cluster_cidr",
        "",
        "--ipvs-scheduler=rr",
        "--ipvs-scheduler",
        "wlc",
        "--ipvs-exclude-cidrs=10.0.0.0/8,10.1.0.0/16",
        "--ipvs-exclude-cidrs=fd00::/8",
        "-v=4",
    ])
    .unwrap();
    for (name, values) in [
        ("oom-score-adj", &["-998"][..]),
        ("cluster-cidr", &[""]),
        ("ipvs-scheduler", &["wlc"]),
        ("ipvs-exclude-cidrs", &["10.0.0.0/8,10.1.0.0/16", "fd00::/8"]),
        ("v", &["4"]),
    ] {
        assert_eq!(arguments.values(name).unwrap(), values, "{name}");
    }
    assert_eq!(arguments.given.len(), 5);
    for words in [["-v4", ""], ["-v", "4"], ["--v=4", ""], ["--v", "4"]] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        assert_eq!(read(&words).unwrap().value("v"), Some("4"), "{words:?}");
    }
}

#[test]
fn what_is_wrong_is_said_and_ends_in_failure() {
    for (words, problem) in [
        (&["--no-such-flag"][..], "--no-such-flag"),
        (&["what", "else"], "unexpected argument 'what'"),
        (&["--ipvs-shceduler=rr"], "--ipvs-scheduler"),
        (&["--bind-address=host"], "\"host\" is not a valid IP address"),
        (&["--healthz-bind-address=host:1"], "neither an IP address nor IP:port"),
        (&["--ipvs-sync-period=30"], "missing unit in duration"),
        (&["--feature-gates=A"], "expect string=bool"),
        (&["--feature-gates=A=2"], "invalid value of A"),
        (&["--vmodule=a"], "pattern=N"),
        (&["--log-json-info-buffer-size=x"], "is not a size"),
        (&["--kube-api-burst=many"], "many"),
        (&["--version=1"], "kube-ipvs v"),
        (&["--version=what"], "neither true nor false"),
    ] {
        let said = match read(words) {
            Err(Answer::Asked(text)) if words == ["--version=1"] => text,
            Err(Answer::Wrong(text)) => text,
            other => panic!("{words:?}: {other:?}"),
        };
        assert!(said.contains(problem), "{words:?}: {said}");
    }
}

#[test]
fn what_is_asked_for_is_told() {
    for (words, told) in [
        (&["--version"][..], concat!("kube-ipvs v", env!("CARGO_PKG_VERSION"))),
        (&["--version=true"], "kube-ipvs v"),
        (&["--version=raw"], "version=v"),
        (&["--help"], "--ipvs-scheduler"),
        (&["-h"], "--ipvs-scheduler"),
    ] {
        match read(words) {
            Err(Answer::Asked(text) | Answer::Help(text)) => {
                assert!(text.contains(told), "{words:?}: {text}");
            }
            other => panic!("{words:?}: {other:?}"),
        }
    }
    assert_eq!(read(&["--version=v1.2.3"]).unwrap().reported_version(), "v1.2.3");
    assert_eq!(
        read(&["--version=false"]).unwrap().reported_version(),
        concat!("v", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn lists_of_pairs_are_read() {
    let arguments =
        read(&["--feature-gates=A=true, B=false", "--feature-gates=", "--vmodule=a*=3"]);
    let document = Configuration::load(&arguments.unwrap()).unwrap().document;
    let gates = [("A".to_owned(), true), ("B".to_owned(), false)];
    assert_eq!(document.feature_gates, gates.into());
    let [item] = &document.logging.vmodule[..] else { panic!("{:?}", document.logging) };
    assert_eq!((item.file_pattern.as_str(), item.verbosity), ("a*", 3));
}

#[test]
fn flags_that_kube_proxy_had_once_are_taken() {
    let old = [
        "--logtostderr",
        "--alsologtostderr=false",
        "--log-dir",
        "/var/log",
        "--stderrthreshold=2",
        "--cleanup-ipvs=true",
        "--feature-gates=SupportIPVSProxyMode=true,ExperimentalCriticalPodAnnotation=true",
        "--ipvs-scheduler=lc",
    ];
    let arguments = read(&old).unwrap();
    assert_eq!(arguments.value("ipvs-scheduler"), Some("lc"));
    assert_eq!(arguments.value("log-dir"), Some("/var/log"));
    match read(&["--help"]) {
        Err(Answer::Help(help)) => assert!(!help.contains("logtostderr"), "{help}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_that_switches_stands_beside_kube_proxys_flags() {
    let words = |words: &[&str]| {
        invocation(["kube-ipvs"].iter().chain(words).map(OsString::from).collect::<Vec<_>>())
    };
    let to = |given: &[&str]| match words(given) {
        Ok(Invocation::Switch(arguments)) => arguments,
        other => panic!("{other:?}"),
    };
    for (mode, word) in [(Mode::Ipvs, "--to=ipvs"), (Mode::Iptables, "--to=iptables")] {
        let expected = SwitchArguments { to: mode, dry_run: false, no_wait: false };
        assert_eq!(to(&["switch", word]), expected);
    }
    assert!(to(&["switch", "--to", "ipvs", "--dry-run"]).dry_run);
    assert!(to(&["switch", "--to", "ipvs", "--no_wait"]).no_wait);
    for (wrong, problem) in [
        (&["switch"][..], "--to"),
        (&["switch", "--to=nftables"], "ipvs, iptables or userspace"),
        (&["switch", "--to=ipvs", "--v=4"], "--v"),
        (&["--v=4", "switch"], "unexpected argument 'switch'"),
    ] {
        let Err(Answer::Wrong(said)) = words(wrong) else { panic!("{wrong:?}") };
        assert!(said.contains(problem), "{wrong:?}: {said}");
    }
    assert!(
        matches!(words(&["switch", "--help"]), Err(Answer::Asked(text)) if text.contains("--dry-run"))
    );
    let asked = |given: &[&str]| match words(given) {
        Err(Answer::Asked(text) | Answer::Help(text)) => text,
        other => panic!("{given:?}: {other:?}"),
    };
    assert_eq!(asked(&["help"]), asked(&["--help"]));
    assert_eq!(asked(&["help", "switch"]), asked(&["switch", "--help"]));
    let of_console = ["kube-ipvs", "status", "--help"].map(OsString::from);
    assert!(
        matches!(words(&["help", "status"]), Ok(Invocation::Console(said)) if said == of_console)
    );
    assert!(matches!(words(&["--v=4"]), Ok(Invocation::Run(_))));
}
