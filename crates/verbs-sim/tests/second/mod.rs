//! A part of a test in a process of its own, which finds the simulated device under the name of
//! libibverbs.

#[path = "../../../fabric/tests/processes/again.rs"]
mod again;

use std::path::PathBuf;
use std::process::Output;

/// Names the part that the second process plays.
pub const PART: &str = "MILLSTREAM_TEST_PART";

/// Runs a part in a process of its own on a device with these knobs.
pub fn play(part: &str, knobs: &str) -> Output {
    let exe = std::env::current_exe().expect("a path");
    let library = exe.parent().expect("a directory").join("libverbs_sim.so");
    assert!(library.exists(), "{} is not built", library.display());
    let dir: PathBuf = std::env::temp_dir()
        .join(format!("millstream-verbs-sim-{}-{part}-{knobs}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let name = dir.join("libibverbs.so.1");
    let _ = std::fs::remove_file(&name);
    std::os::unix::fs::symlink(&library, &name).expect("a link");
    // No connection manager knows the simulated device.
    for name in ["librdmacm.so.1", "librdmacm.so"] {
        std::fs::write(dir.join(name), "").expect("a file");
    }
    let output = again::this_binary()
        .args(["--exact", &second_process(), "--nocapture"])
        .env(PART, part)
        .env("LD_LIBRARY_PATH", &dir)
        .env("MILLSTREAM_VERBS_SIM", knobs)
        .output()
        .expect("the test binary starts");
    std::fs::remove_dir_all(&dir).expect("the directory goes");
    output
}

/// The test `second_process` beside this module, as the binary calls it.
fn second_process() -> String {
    let own = module_path!().split("::").skip(1);
    let beside = own.take_while(|&name| name != "second");
    beside.chain(["second_process"]).collect::<Vec<_>>().join("::")
}

/// The same of a part that succeeds.
pub fn plays_well(part: &str, knobs: &str) {
    let output = play(part, knobs);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{part} with {knobs}: {}\n{}\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}
