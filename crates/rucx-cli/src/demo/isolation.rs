//! What a process was started with: descriptors, environment, arguments.

use std::fs;

use super::protocol::Descriptor;

/// The open descriptors of this process, without the one that is open to list them.
pub(crate) fn descriptors() -> Vec<Descriptor> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let what = target.to_string_lossy().into_owned();
        if !what.starts_with(&format!("/proc/{}/fd", std::process::id())) {
            found.push(Descriptor { number, what });
        }
    }
    found.sort_by_key(|descriptor| descriptor.number);
    found
}

/// The names of the environment variables of this process.
pub(crate) fn environment() -> Vec<String> {
    std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned()).collect()
}

/// Those of a role's descriptors that the demo did not mean it to have: others than three pipes. What the demo itself was
/// started with is left out.
pub(crate) fn surplus<'a>(of_role: &'a [Descriptor], inherited: &[Descriptor]) -> Vec<&'a Descriptor> {
    let meant = |one: &Descriptor| one.number <= 2 && one.what.starts_with("pipe:");
    let theirs = |one: &Descriptor| one.number > 2 && inherited.contains(one);
    of_role.iter().filter(|one| !meant(one) && !theirs(one)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn open_files_are_listed() {
        let file = File::open("/dev/null").unwrap();
        let number = u32::try_from(file.as_raw_fd()).unwrap();
        let all = descriptors();
        assert!(all.contains(&Descriptor { number, what: "/dev/null".to_owned() }), "{all:?}");
        assert!(all.is_sorted_by_key(|one| one.number));
    }

    #[test]
    fn anything_but_three_pipes_is_surplus() {
        let one = |number, what: &str| Descriptor { number, what: what.to_owned() };
        let of_role = [one(0, "pipe:[1]"), one(1, "/dev/null"), one(3, "socket:[7]"), one(4, "/memfd:x")];
        let inherited = [one(1, "/dev/null"), one(3, "socket:[7]")];
        assert_eq!(surplus(&of_role, &inherited), [&of_role[1], &of_role[3]]);
    }
}
