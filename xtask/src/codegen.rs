//! The bindings of `rdma-core-sys`, from the headers of rdma-core: `cargo xtask codegen`. With `--check`: what is committed is what would
//! be generated.
//!
//! Needs `bindgen` (of [`BINDGEN`]), libclang, rustfmt and the headers of [`RDMA_CORE`]; nothing else of the workspace does. Where something of
//! that is missing, `--check` says what, and exits with 77, as programs do that skip.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::command;

/// A header, and the file that is made of it.
#[derive(Debug)]
struct Bindings {
    path: &'static str,
    header: &'static str,
    /// Debian's package of the header.
    package: &'static str,
    /// What tells its version.
    pc: &'static str,
    /// What the crate's functions take, what is reached from there comes along.
    types: &'static [&'static str],
    /// Constants of the preprocessor, and of enumerations without a name.
    constants: &'static str,
    /// What the types are made of that stand elsewhere.
    uses: &'static str,
}

/// What is written.
pub(crate) const PATHS: [&str; 2] = [VERBS.path, CM.path];

/// Verbs.
const VERBS: Bindings = Bindings {
    path: "crates/rdma-core-sys/src/bindings.rs",
    header: "infiniband/verbs.h",
    package: "libibverbs-dev",
    pc: "libibverbs.pc",
    types: &TYPES,
    constants: "IBV_LINK_LAYER_.*",
    uses: "use libc::{pthread_cond_t, pthread_mutex_t};\n\nuse crate::opaque::*;\n\n",
};

/// The connection manager. What it shares with verbs stands there.
const CM: Bindings = Bindings {
    path: "crates/rdma-core-sys/src/cm_bindings.rs",
    header: "rdma/rdma_cma.h",
    package: "librdmacm-dev",
    pc: "librdmacm.pc",
    types: &["rdma_addrinfo", "rdma_cm_event", "rdma_cm_id", "rdma_conn_param", "rdma_event_channel"],
    constants: "RAI_.*|RDMA_MAX_(RESP_RES|INIT_DEPTH)",
    uses: "use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};\n\nuse crate::bindings::*;\n\n",
};

/// The version of the headers. Another one has other flags and enumerators, so its output would be another one, too.
const RDMA_CORE: &str = "44.0";

/// The version of bindgen, for the same reason.
const BINDGEN: &str = "0.72.1";

/// The exit status of what could not be done here.
const SKIPPED: u8 = 77;

/// Of verbs.
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

/// Structures that are only pointed to, by functions that the crate does not call: they stand in `opaque.rs`.
const OPAQUE: &str = "ibv_(alloc_dm_attr|ah|counter_attach_attr|counters|counters_init_attr|cq_ex|cq_init_attr_ex|dm|flow|flow_action\
                      |flow_attr|modify_cq_attr|ops_wr|parent_domain_init_attr|qp_init_attr_ex|qp_open_attr|qp_rate_limit_attr\
                      |rwq_ind_table|rwq_ind_table_init_attr|srq_init_attr_ex|td|td_init_attr|values_ex|wq|wq_attr|wq_init_attr\
                      |xrcd|xrcd_init_attr)|ib_uverbs_flow_action_esp.*|ibv_flow_action_esp_attr|verbs_ex_private|_compat_ibv_port_attr";

/// Types whose size is the C library's business: they differ from machine to machine, and the crate `libc` knows.
const OF_LIBC: &str =
    "pthread_mutex_t|pthread_cond_t|timespec|__pthread_.*|__atomic_.*|__time_t|__syscall_slong_t";

/// How the names of types begin that the crate `libc` knows, too, and that are the same everywhere. bindgen has to see them: structures that have
/// them would not be `Copy` otherwise.
const SOCKETS: [&str; 7] =
    ["sockaddr", "sa_family_t", "in_addr", "in_port_t", "in6_addr", "socklen_t", "__socklen_t"];

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
    let mut all_well = true;
    for (path, text) in PATHS.iter().zip(generated) {
        all_well &= done(root, path, &text, check);
    }
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Compares a file with what was generated, or writes it.
fn done(root: &Path, name: &str, generated: &str, check: bool) -> bool {
    let path = root.join(name);
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    if generated == committed {
        println!("codegen: {name} is as rdma-core {RDMA_CORE} and bindgen {BINDGEN} make it");
        return true;
    }
    if check {
        let difference = first_difference(&committed, generated);
        eprintln!("codegen: {name} is not what would be generated: {difference}");
        return false;
    }
    match std::fs::write(&path, generated) {
        Ok(()) => println!("wrote {name}"),
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            return false;
        }
    }
    true
}

/// What this machine lacks to generate anything, and where it comes from.
fn missing(headers: &Path) -> Option<String> {
    for Bindings { header, package, pc, .. } in [VERBS, CM] {
        if !headers.join(header).exists() {
            let headers = headers.display();
            return Some(format!("no {header} in {headers} (apt-get install {package}, or --headers DIR)"));
        }
        match version(headers, pc) {
            Some(version) if version == RDMA_CORE => {}
            Some(version) => {
                return Some(format!("these are headers of rdma-core {version}, not of {RDMA_CORE}"));
            }
            None => return Some(format!("there is no {pc} beside the headers that tells their version")),
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

/// The version of rdma-core that a file like `libibverbs.pc` tells: the last two of its four numbers.
fn version(headers: &Path, pc: &str) -> Option<String> {
    let prefix = headers.parent()?;
    let mut places = vec![prefix.join("lib/pkgconfig"), prefix.join("lib64/pkgconfig")];
    let triples = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    places.extend(triples.map(|dir| dir.path().join("pkgconfig")));
    let read = |dir: &PathBuf| std::fs::read_to_string(dir.join(pc)).ok();
    version_in(&places.iter().find_map(read)?)
}

fn version_in(pc: &str) -> Option<String> {
    let version = pc.lines().find_map(|line| line.strip_prefix("Version:"))?;
    let mut numbers = version.trim().splitn(3, '.');
    numbers.nth(2).map(str::to_owned)
}

/// The files' texts, in the order of [`PATHS`].
fn generate(root: &Path, headers: &Path) -> Result<[String; 2], String> {
    let own = both(root, headers, None)?;
    // The machine must not matter. It is looked at for the other one where that one's C library has headers here.
    let other = if cfg!(target_arch = "x86_64") { "aarch64" } else { "x86_64" };
    let library = headers.with_file_name(format!("{other}-linux-gnu")).join("include");
    if library.exists() {
        let others = both(root, headers, Some((other, &library)))?;
        if let Some((own, others)) = own.iter().zip(&others).find(|(own, others)| own != others) {
            let difference = first_difference(own, others);
            return Err(format!("the bindings differ on {other}: {difference}"));
        }
        println!("codegen: the same on {other}");
    }
    let [verbs, cm] = own;
    let whole = |of: &Bindings, types: &str| {
        let title = format!("Types of `<{}>`, rdma-core {RDMA_CORE}", of.header);
        let origin = format!("Generated by `cargo xtask codegen` with bindgen {BINDGEN}: not for editing");
        rustfmt(root, &format!("//! {title}. {origin}.\n{HEADER}{}{types}", of.uses))
    };
    Ok([whole(&VERBS, &verbs)?, whole(&CM, &cm)?])
}

/// The types of verbs, and those of the connection manager that are not among them.
fn both(root: &Path, headers: &Path, other: Option<(&str, &Path)>) -> Result<[String; 2], String> {
    let verbs = rustfmt(root, &types(&VERBS, headers, other)?)?;
    let cm = rustfmt(root, &types(&CM, headers, other)?)?;
    let known = items(&verbs);
    let own: String =
        items(&cm).into_iter().filter(|item| !known.contains(item) && !is_of_sockets(item)).collect();
    Ok([verbs, own])
}

/// The items of what rustfmt has written: the last line of each is not indented, and ends it.
fn items(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut start, mut end) = (0, 0);
    for line in text.split_inclusive('\n') {
        end += line.len();
        if !line.starts_with(' ') && line.trim_end().ends_with(['}', ';']) {
            items.push(&text[start..end]);
            start = end;
        }
    }
    items
}

/// Whether it is one of [`SOCKETS`], or belongs to one.
fn is_of_sockets(item: &str) -> bool {
    const STARTS: [&str; 4] = ["pub struct ", "pub union ", "pub type ", "impl Default for "];
    let name = |line: &'_ str| STARTS.iter().find_map(|start| line.strip_prefix(start).map(str::to_owned));
    let name = item.lines().find_map(name);
    name.is_some_and(|name| SOCKETS.iter().any(|start| name.starts_with(start)))
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

";

/// What bindgen makes of the header: for this machine, or for another one with the headers of its C library.
fn types(of: &Bindings, headers: &Path, other: Option<(&str, &Path)>) -> Result<String, String> {
    let mut bindgen = Command::new("bindgen");
    bindgen.arg(headers.join(of.header));
    for name in of.types {
        bindgen.args(["--allowlist-type", name]);
    }
    bindgen.args(["--allowlist-var", of.constants, "--blocklist-type", OPAQUE]);
    bindgen.args(["--blocklist-type", OF_LIBC, "--blocklist-type", UNUSED]);
    bindgen.args(["--default-enum-style", "newtype", "--bitfield-enum", FLAGS]);
    bindgen.args(["--constified-enum", "_bindgen_ty_.*", "--generate", "types,vars"]);
    bindgen.args(["--default-macro-constant-type", "signed"]);
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
    fn items_are_compared_whole() {
        let text =
            "pub type a = b;\n#[derive(Debug)]\npub struct s {\n    pub x: a,\n}\npub const C: a = 1;\n";
        let items = items(text);
        assert_eq!(items.concat(), text);
        assert_eq!(items.iter().map(|item| item.lines().count()).collect::<Vec<_>>(), [1, 4, 1]);
    }

    #[test]
    fn types_of_sockets_are_libc_s() {
        assert!(is_of_sockets("#[repr(C)]\npub struct sockaddr_in {\n}\n"));
        assert!(is_of_sockets("impl Default for in6_addr__bindgen_ty_1 {\n}\n"));
        assert!(is_of_sockets("pub type socklen_t = __socklen_t;\n"));
        assert!(!is_of_sockets("pub struct rdma_addr {\n    pub a: sockaddr,\n}\n"));
    }

    #[test]
    fn differences_are_told_by_line() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), "line 2: `b`, `c`");
        assert_eq!(first_difference("a\n", "a\nc\n"), "1 lines, 2 lines");
    }
}
