//! The programs and libraries this takes: the machine's own, or unpacked from Debian's packages where it has none.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Trouble;
use super::apt::{self, Apt};

const BIN: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];
const LIB: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// Packages, and the program or library each is wanted for.
const NEEDS: [(&str, &str); 11] = [
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("kmod", "kmod"),
    ("xz-utils", "xz"),
    ("zstd", "zstd"),
    ("iproute2", "ip"),
    ("iproute2", "rdma"),
    ("iproute2", "tc"),
    ("libc-bin", "ldd"),
    ("libibverbs1", "libibverbs.so.1"),
    ("librdmacm1", RDMACM),
    ("ibverbs-providers", PROVIDER),
];

/// The connection manager.
pub(crate) const RDMACM: &str = "librdmacm.so.1";

/// The user's half of rxe. Its name goes on with a number of the interface to libibverbs.
pub(crate) const PROVIDER: &str = "libibverbs/librxe-rdmav";

/// Where they are.
#[derive(Debug)]
pub(crate) struct Tools {
    /// What has been unpacked; searched first.
    unpacked: PathBuf,
}

impl Tools {
    /// Downloads what is missing.
    pub(crate) fn get(apt: &Apt, work: &Path) -> Result<Self, Trouble> {
        let tools = Self { unpacked: work.join("tools") };
        // Its own: what a machine has by that name may be another build, with other applets.
        let busybox = tools.unpacked.join("bin/busybox").exists();
        if busybox && tools.missing().is_empty() {
            return Ok(tools);
        }
        apt::remove(&tools.unpacked)?;
        let packages = work.join("packages").join("tools");
        apt::remove(&packages)?;
        apt.download(&["busybox-static".to_owned()], &packages)?;
        let missing = tools.missing();
        if !missing.is_empty() {
            apt.download_with_dependencies("-backports", &missing, &packages)?;
        }
        apt::unpack(&packages, &tools.unpacked)?;
        apt::remove(&packages)?;
        match tools.missing().as_slice() {
            [] => Ok(tools),
            missing => Err(Trouble::Failed(format!("not in Debian's packages: {}", missing.join(", ")))),
        }
    }

    /// Packages that are neither the machine's nor unpacked.
    fn missing(&self) -> Vec<&'static str> {
        let is_there =
            |name: &str| if name.starts_with("lib") { self.library(name) } else { self.find(name) }.is_some();
        let mut missing: Vec<&str> =
            NEEDS.iter().filter(|(_, name)| !is_there(name)).map(|(package, _)| *package).collect();
        missing.dedup();
        missing
    }

    /// The path of a program.
    fn find(&self, name: &str) -> Option<PathBuf> {
        let roots = [self.unpacked.as_path(), Path::new("/")];
        let paths = roots.iter().flat_map(|root| BIN.iter().map(move |bin| root.join(bin).join(name)));
        paths.into_iter().find(|path| path.exists())
    }

    /// The path of a library whose name begins so.
    fn library(&self, start: &str) -> Option<PathBuf> {
        let roots = [self.unpacked.as_path(), Path::new("/")];
        let starts = roots.iter().flat_map(|root| LIB.iter().map(move |lib| root.join(lib).join(start)));
        starts.into_iter().find_map(|start| {
            let name = start.file_name()?.to_string_lossy().into_owned();
            let files = std::fs::read_dir(start.parent()?).ok()?;
            let mut found = files
                .flatten()
                .map(|file| file.path())
                .filter(|path| path.file_name().is_some_and(|it| it.to_string_lossy().starts_with(&name)));
            found.find(|path| path.exists())
        })
    }

    /// The path of something that has been seen to be there.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, Trouble> {
        let path = match name {
            "busybox" => Some(self.unpacked.join("bin/busybox")),
            name if name.starts_with("lib") => self.library(name),
            name => self.find(name),
        };
        path.ok_or_else(|| Trouble::Failed(format!("{name} has gone from {}", self.unpacked.display())))
    }

    /// A program, with the unpacked libraries.
    pub(crate) fn command(&self, name: &str) -> Result<Command, Trouble> {
        let mut command = Command::new(self.path(name)?);
        command.env("LD_LIBRARY_PATH", self.library_path()).stdin(Stdio::null());
        Ok(command)
    }

    fn library_path(&self) -> OsString {
        let paths = LIB.map(|lib| self.unpacked.join(lib));
        std::env::join_paths(paths).unwrap_or_default()
    }

    /// Where qemu has its firmware, if it is unpacked.
    pub(crate) fn firmware(&self) -> impl Iterator<Item = PathBuf> {
        let dirs = ["usr/share/qemu", "usr/share/seabios"].map(|dir| self.unpacked.join(dir));
        dirs.into_iter().filter(|dir| dir.exists())
    }

    /// The libraries that a program or library is linked with, and theirs, the dynamic linker among them.
    pub(crate) fn linked(&self, file: &Path) -> Result<Vec<PathBuf>, Trouble> {
        let mut command = self.command("ldd")?;
        let output = command.arg(file).output().map_err(|error| Trouble::file(file, error))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        if errors.contains("not a dynamic executable") {
            return Ok(Vec::new());
        }
        if !output.status.success() {
            return Err(Trouble::file(file, format!("ldd: {}", errors.trim())));
        }
        libraries(&text).map_err(|missing| {
            Trouble::file(file, format!("it is linked with {missing}, which is not there"))
        })
    }
}

/// The paths in what ldd prints, or the name of what it has not found.
fn libraries(output: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in output.lines() {
        let (name, place) = line.trim().split_once(" => ").unwrap_or(("", line.trim()));
        if place == "not found" {
            return Err(name.to_owned());
        }
        let path = place.split(" (0x").next().unwrap_or(place);
        if path.starts_with('/') {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ldd_prints() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f53)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f53)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(output), Ok(paths.to_vec()));
        assert_eq!(libraries("\tstatically linked\n"), Ok(Vec::new()));
        assert_eq!(libraries("\tlibx.so.1 => not found\n"), Err("libx.so.1".to_owned()));
    }
}
