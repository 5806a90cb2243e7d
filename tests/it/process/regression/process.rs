//! What stopped the whole process, or kept it from its work.

use crate::support::client::{Connection, get};
use crate::support::proxy::Proxy;
use crate::support::tidegate::Tidegate;
use crate::support::upstream::Upstream;

/// The whole process waited for somebody to write into the pipe, and could not even be told to end.
#[test]
fn a_file_that_becomes_a_pipe_or_endless_stops_nothing() {
    let api = Upstream::echoing();
    type Replace = fn(&std::path::Path);
    let cases: [(&str, Replace); 3] = [
        ("a pipe", |file| {
            assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
        }),
        ("a device", |file| std::os::unix::fs::symlink("/dev/zero", file).unwrap()),
        ("a giant", |file| std::fs::File::create(file).unwrap().set_len(1 << 40).unwrap()),
    ];
    for (name, replace) in cases {
        let mut proxy = Proxy::of_one_worker(&api).start();
        let before = proxy.memory();
        std::fs::remove_file(proxy.config_file()).unwrap();
        replace(&proxy.config_file());
        proxy.log.wait("config rejected", |_| true);
        proxy.signal("HUP");
        assert_eq!(get(proxy.address, "/", &[]).status, 200, "{name}");
        assert!(proxy.memory() < before + 64 * 1024, "{name}");
        assert!(proxy.stop().success(), "{name}");
    }
}

/// Clients that only held connections took the descriptors that requests needed to go upstream: all
/// were answered 502, the server counted as down, and the log filled with failed accepts.
#[test]
fn idle_clients_take_no_descriptors_from_who_asks() {
    let api = Upstream::echoing();
    let proxy = Tidegate::start_with(&Proxy::of_one_worker(&api).text(), |command| {
        // The proxy's own command, with fewer descriptors.
        let (program, arguments) = (command.get_program().to_owned(), command.get_args());
        let arguments: Vec<_> = arguments.map(ToOwned::to_owned).collect();
        let mut limited = std::process::Command::new("sh");
        limited
            .env_remove("RUST_LOG")
            .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
            .arg(program)
            .args(arguments);
        limited.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        *command = limited;
    });
    // Those who ask come after the others. For each of them one that is idle is closed.
    let _others: Vec<_> = (0..100).map(|_| Connection::open(proxy.address)).collect();
    for _ in 0..8 {
        assert_eq!(Connection::open(proxy.address).get("/", &[]).status, 200);
    }
    assert_eq!(proxy.log.count("accept failed"), 0);
    assert_eq!(proxy.log.count("server down"), 0);
}
