//! A test that needs a process of its own runs itself again as a child.

use std::io::Read;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "MLXGEN_TEST_CHILD";

/// Far longer than any child takes, also on a machine whose cores many programs share; shorter than what the runner of
/// the tests waits.
const LIMIT: Duration = Duration::from_secs(240);

/// In the child, the role it was started for.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the test `name` of this binary in a child process, with `prefix` before its command line
/// (such as `["sh", "-c", "ulimit -v 1000; exec \"$@\"", "sh"]`). A child that hangs is killed.
pub fn run(name: &str, role: &str, prefix: &[&str]) -> Output {
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().unwrap();
    let mut words: Vec<&str> = prefix.to_vec();
    words.extend([this, "--exact", name, "--nocapture", "--test-threads=1", "--include-ignored"]);
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .env(ROLE, role)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let stdout = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes).unwrap()
    });
    let stderr = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes).unwrap()
    });
    let start = Instant::now();
    let status: ExitStatus = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LIMIT {
            eprintln!("child {role} took longer than {LIMIT:?}");
            child.kill().unwrap();
            break child.wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// As [`run`]; the child has to end with `code`.
pub fn expect(name: &str, role: &str, prefix: &[&str], code: i32) {
    let output = run(name, role, prefix);
    assert!(
        output.status.code() == Some(code),
        "child {role}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
