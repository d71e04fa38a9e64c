//! The bindings of `rdma-core-sys`, from the headers of rdma-core: `cargo xtask codegen`. With `--check`: what is committed is what would
//! be generated.
//!
//! Needs `bindgen` (of [`BINDGEN`]), libclang, rustfmt and the headers of [`RDMA_CORE`]; nothing else of the workspace does. Where something of
//! that is missing, `--check` says what, and exits with 77, as programs do that skip.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::command;

/// What is written.
pub(crate) const BINDINGS: &str = "crates/rdma-core-sys/src/bindings.rs";

/// The version of the headers. Another one has other flags and enumerators, so its output would be another one, too.
const RDMA_CORE: &str = "44.0";

/// The version of bindgen, for the same reason.
const BINDGEN: &str = "0.72.1";

/// The exit status of what could not be done here.
const SKIPPED: u8 = 77;

/// What the crate's functions take, what is reached from there comes along.
const TYPES: [&str; 28] = [
    "ib_uverbs_access_flags",
    "ibv_access_flags",
    "ibv_async_event",
    "ibv_comp_channel",
    "ibv_context",
    "ibv_cq",
    "ibv_device",
    "ibv_device_attr",
    "ibv_device_attr_ex",
    "ibv_device_cap_flags",
    "ibv_fork_status",
    "ibv_gid_entry",
    "ibv_gid_type",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_port_attr",
    "ibv_qp",
    "ibv_qp_attr",
    "ibv_qp_attr_mask",
    "ibv_qp_init_attr",
    "ibv_query_device_ex_input",
    "ibv_recv_wr",
    "ibv_send_flags",
    "ibv_send_wr",
    "ibv_srq_init_attr",
    "ibv_wc",
    "ibv_wc_flags",
    "verbs_context",
];

/// Constants of enumerations without a name.
const CONSTANTS: &str = "IBV_LINK_LAYER_.*";

/// Structures that are only pointed to, by functions that the crate does not call: they stand in `opaque.rs`.
const OPAQUE: &str = "ibv_(alloc_dm_attr|ah|counter_attach_attr|counters|counters_init_attr|cq_ex|cq_init_attr_ex|dm|flow|flow_action\
                      |flow_attr|modify_cq_attr|ops_wr|parent_domain_init_attr|qp_init_attr_ex|qp_open_attr|qp_rate_limit_attr\
                      |rwq_ind_table|rwq_ind_table_init_attr|srq_init_attr_ex|td|td_init_attr|values_ex|wq|wq_attr|wq_init_attr\
                      |xrcd|xrcd_init_attr)|ib_uverbs_flow_action_esp.*|ibv_flow_action_esp_attr|verbs_ex_private|_compat_ibv_port_attr";

/// Types whose size is the C library's business: they differ from machine to machine, and the crate `libc` knows.
const OF_LIBC: &str =
    "pthread_mutex_t|pthread_cond_t|timespec|__pthread_.*|__atomic_.*|__time_t|__syscall_slong_t";

/// What comes along by way of those alone.
const UNUSED: &str = "ibv_(counter_description|flow_attr_type|moderate_cq|ops_wr_opcode|ops_wr__bindgen.*|poll_cq_attr\
                      |rx_hash_conf|srq_type|tm_cap|wc_tm_info|wq_state|wq_type)";

/// Enumerations whose values are combined.
const FLAGS: &str = "ib_uverbs_access_flags|ibv_(access_flags|device_cap_flags|odp_general_caps|odp_transport_cap_bits|qp_attr_mask\
                     |send_flags|wc_flags)";

/// Runs the command.
pub(crate) fn main(root: &Path, options: &[&str]) -> ExitCode {
    let (check, headers) = match options {
        [] => (false, "/usr/include"),
        ["--check"] => (true, "/usr/include"),
        ["--headers", headers] => (false, *headers),
        ["--check", "--headers", headers] => (true, *headers),
        _ => return crate::usage("codegen [--check] [--headers DIR]"),
    };
    if let Some(missing) = missing(Path::new(headers)) {
        println!("codegen: {missing}");
        return if check { ExitCode::from(SKIPPED) } else { ExitCode::FAILURE };
    }
    let generated = match generate(root, Path::new(headers)) {
        Ok(generated) => generated,
        Err(error) => {
            eprintln!("codegen: {error}");
            return ExitCode::FAILURE;
        }
    };
    let path = root.join(BINDINGS);
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if generated == committed {
        println!("codegen: {BINDINGS} is as rdma-core {RDMA_CORE} and bindgen {BINDGEN} make it");
        return ExitCode::SUCCESS;
    }
    if check {
        eprintln!(
            "codegen: {BINDINGS} is not what would be generated: {}",
            first_difference(&committed, &generated)
        );
        return ExitCode::FAILURE;
    }
    match std::fs::write(&path, generated) {
        Ok(()) => {
            println!("wrote {BINDINGS}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}

/// What this machine lacks to generate anything, and where it comes from.
fn missing(headers: &Path) -> Option<String> {
    if !headers.join("infiniband/verbs.h").exists() {
        let headers = headers.display();
        return Some(format!(
            "no infiniband/verbs.h in {headers} (apt-get install libibverbs-dev, or --headers DIR)"
        ));
    }
    match version(headers) {
        Some(version) if version == RDMA_CORE => {}
        Some(version) => {
            return Some(format!("these are headers of rdma-core {version}, not of {RDMA_CORE}"));
        }
        None => {
            return Some("there is no libibverbs.pc beside the headers that tells their version".to_owned());
        }
    }
    match command::output("bindgen", &["--version"]) {
        Some(version) if version.trim().ends_with(&format!(" {BINDGEN}")) => {}
        Some(version) => return Some(format!("this is {}, not {BINDGEN}", version.trim())),
        None => return Some(format!("no bindgen (cargo install --locked bindgen-cli@{BINDGEN})")),
    }
    // libclang is loaded when there is something to do.
    match command::output("bindgen", &["/dev/null", "--", "-x", "c"]) {
        Some(_) => None,
        None => Some("bindgen finds no libclang (apt-get install libclang-dev, or LIBCLANG_PATH)".to_owned()),
    }
}

/// The version of rdma-core that `libibverbs.pc` tells: the last two of its four numbers.
fn version(headers: &Path) -> Option<String> {
    let prefix = headers.parent()?;
    let mut places = vec![prefix.join("lib/pkgconfig"), prefix.join("lib64/pkgconfig")];
    let triples = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    places.extend(triples.map(|dir| dir.path().join("pkgconfig")));
    let read = |dir: &PathBuf| std::fs::read_to_string(dir.join("libibverbs.pc")).ok();
    version_in(&places.iter().find_map(read)?)
}

fn version_in(pc: &str) -> Option<String> {
    let version = pc.lines().find_map(|line| line.strip_prefix("Version:"))?;
    let mut numbers = version.trim().splitn(3, '.');
    numbers.nth(2).map(str::to_owned)
}

/// The file's text.
fn generate(root: &Path, headers: &Path) -> Result<String, String> {
    let own = rustfmt(root, &types(headers, None)?)?;
    // The machine must not matter. It is looked at for the other one where that one's C library has headers here.
    let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
    let library = headers.with_file_name(format!("{other}-linux-gnu")).join("include");
    if library.exists() {
        let others = rustfmt(root, &types(headers, Some((other, &library)))?)?;
        if own != others {
            let difference = first_difference(&own, &others);
            return Err(format!("the bindings differ on {other}: {difference}"));
        }
        println!("codegen: the same on {other}");
    }
    let title = format!("Types of `<infiniband/verbs.h>`, rdma-core {RDMA_CORE}");
    let origin = format!("Generated by `cargo xtask codegen` with bindgen {BINDGEN}: not for editing");
    rustfmt(root, &format!("//! {title}. {origin}.\n{HEADER}{own}"))
}

/// The text as `cargo fmt` would have it.
fn rustfmt(root: &Path, text: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("rustfmt: {error}");
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout", "--config-path"])
        .arg(root.join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let input = rustfmt.stdin.take();
    // It reads all before it writes anything.
    input.map_or(Ok(()), |mut input| input.write_all(text.as_bytes())).map_err(failed)?;
    let output = rustfmt.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("rustfmt: {}", output.status)),
    }
}

/// What stands before the types.
const HEADER: &str = "//!
//! rdma-core offers its header under GPL-2.0 or the OpenIB.org BSD license; here it is used under the latter. Of it there are the declarations
//! of the interface alone: layouts, names and numbers.
//!
//! # Safety
//!
//! Nothing here runs but `Default`, which bindgen writes for structures of integers, pointers and unions of such: all bytes 0 are a value of them.
#![allow(unsafe_code)]
#![allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block, clippy::missing_safety_doc)]

use libc::{pthread_cond_t, pthread_mutex_t};

use crate::opaque::*;

";

/// What bindgen makes of the header: for this machine, or for another one with the headers of its C library.
fn types(headers: &Path, other: Option<(&str, &Path)>) -> Result<String, String> {
    let mut bindgen = Command::new("bindgen");
    bindgen.arg(headers.join("infiniband/verbs.h"));
    for name in TYPES {
        bindgen.args(["--allowlist-type", name]);
    }
    bindgen.args(["--allowlist-var", CONSTANTS, "--blocklist-type", OPAQUE]);
    bindgen.args(["--blocklist-type", OF_LIBC, "--blocklist-type", UNUSED]);
    bindgen.args(["--default-enum-style", "newtype", "--bitfield-enum", FLAGS]);
    bindgen.args(["--constified-enum", "_bindgen_ty_.*", "--generate", "types,vars"]);
    bindgen.args([
        "--with-derive-default",
        "--no-doc-comments",
        "--no-layout-tests",
        "--disable-header-comment",
    ]);
    bindgen.args(["--use-core", "--rust-target", "1.85", "--rust-edition", "2024"]);
    bindgen.args(["--formatter", "none", "--"]);
    bindgen.arg("-I").arg(headers);
    if let Some((target, library)) = other {
        bindgen.arg(format!("--target={target}-unknown-linux-gnu")).arg("-isystem").arg(library);
    }
    let output = bindgen.stdin(Stdio::null()).output().map_err(|error| format!("bindgen: {error}"))?;
    if !output.status.success() {
        return Err(format!("bindgen: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The first line in which two texts differ.
fn first_difference(one: &str, other: &str) -> String {
    let mut lines = one.lines().zip(other.lines()).zip(1..);
    match lines.find(|((one, other), _)| one != other) {
        Some(((one, other), number)) => format!("line {number}: `{one}`, `{other}`"),
        None => format!("{} lines, {} lines", one.lines().count(), other.lines().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_rdma_core_is_behind_that_of_the_library() {
        assert_eq!(
            version_in("Name: libibverbs\nVersion: 1.14.44.0\nLibs: -libverbs\n").as_deref(),
            Some("44.0")
        );
        assert_eq!(version_in("Version: 1.15\n"), None);
        assert_eq!(version_in("Name: libibverbs\n"), None);
    }

    #[test]
    fn where_something_is_missing_it_says_what() {
        let nowhere = missing(Path::new("/nonexistent")).unwrap();
        assert!(nowhere.contains("infiniband/verbs.h") && nowhere.contains("libibverbs-dev"), "{nowhere}");
    }

    #[test]
    fn differences_are_told_by_line() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), "line 2: `b`, `c`");
        assert_eq!(first_difference("a\n", "a\nc\n"), "1 lines, 2 lines");
    }
}
