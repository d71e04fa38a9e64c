//! A kernel of Debian's, as qemu starts it: the ELF file within `vmlinuz`, by the PVH entry, which is much faster than its own
//! decompression under an emulator.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::Trouble;
use super::apt::{self, Apt};
use super::tools::Tools;

/// Which kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The newest there is.
    #[default]
    New,
    /// Debian 12's.
    Old,
}

impl Choice {
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "new" => Some(Self::New),
            "6.1" => Some(Self::Old),
            _ => None,
        }
    }

    /// Whether its rxe works in network namespaces.
    pub(crate) fn has_namespaces(self) -> bool {
        self == Self::New
    }

    /// Its name, and the suite it is from.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::New => ("new", apt::KERNELS[0]),
            Self::Old => ("6.1", apt::KERNELS[1]),
        }
    }
}

/// An unpacked kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// What `uname -r` says.
    pub(crate) release: String,
    /// The uncompressed file.
    pub(crate) elf: PathBuf,
    /// Its directory of modules, with `modules.dep`.
    pub(crate) modules: PathBuf,
}

/// The kernel of that name: the cached one, or the newest there is.
pub(crate) fn get(apt: &Apt, tools: &Tools, work: &Path, choice: Choice) -> Result<Kernel, Trouble> {
    let (name, suite) = choice.names();
    let cache = work.join("kernels");
    let known = cache.join(format!("{name}.release"));
    if let Ok(release) = std::fs::read_to_string(&known)
        && let Some(kernel) = unpacked(&cache, release.trim())
    {
        return Ok(kernel);
    }
    let meta = format!("linux-image-amd64/{suite}");
    let release = release(&apt.depends(&meta)?).ok_or_else(|| {
        Trouble::Failed(format!("{meta} depends on no linux-image: has Debian changed its names?"))
    })?;
    let kernel = match unpacked(&cache, &release) {
        Some(kernel) => kernel,
        None => fetch(apt, tools, work, &cache, &release)?,
    };
    std::fs::write(&known, &release).map_err(|error| Trouble::file(&known, error))?;
    Ok(kernel)
}

/// A kernel that is complete: its ELF file is made last.
fn unpacked(cache: &Path, release: &str) -> Option<Kernel> {
    let root = cache.join(release);
    let elf = root.join("vmlinux");
    let modules = ["usr/lib", "lib"].map(|lib| root.join(lib).join("modules").join(release));
    let modules = modules.into_iter().find(|dir| dir.join("modules.dep").exists())?;
    elf.exists().then(|| Kernel { release: release.to_owned(), elf, modules })
}

fn fetch(apt: &Apt, tools: &Tools, work: &Path, cache: &Path, release: &str) -> Result<Kernel, Trouble> {
    let image = format!("linux-image-{release}");
    let packages = work.join("packages").join(release);
    // What an earlier run may have left.
    apt::remove(&packages)?;
    apt.download(&split(&image, &apt.depends(&image)?), &packages)?;
    let root = cache.join(release);
    apt::unpack(&packages, &root)?;
    apt::remove(&packages)?;
    let base = if root.join("usr/lib/modules").exists() { root.join("usr") } else { root.clone() };
    let mut depmod = tools.command("kmod")?;
    // kmod is many programs, by the name it is called by.
    let made = depmod.arg0("depmod").arg("-b").arg(&base).arg(release).output();
    let made = made.map_err(|error| Trouble::Failed(format!("depmod: {error}")))?;
    if !made.status.success() {
        return Err(Trouble::Failed(format!("depmod: {}", String::from_utf8_lossy(&made.stderr).trim())));
    }
    let images = [
        root.join(format!("boot/vmlinuz-{release}")),
        base.join("lib/modules").join(release).join("vmlinuz"),
    ];
    let image = images
        .iter()
        .find(|path| path.exists())
        .ok_or_else(|| Trouble::file(&root, "no vmlinuz in Debian's packages of the kernel"))?;
    extract(tools, image, &root.join("vmlinux"))?;
    unpacked(cache, release)
        .ok_or_else(|| Trouble::file(&root, "no modules in Debian's packages of the kernel"))
}

/// The release that the newest image is of, from what `linux-image-amd64` depends on.
fn release(depends: &[String]) -> Option<String> {
    depends.iter().find_map(|name| name.strip_prefix("linux-image-")).map(str::to_owned)
}

/// The packages that an image's files are in: its own, or since 7.3 several.
fn split(image: &str, depends: &[String]) -> Vec<String> {
    let parts = ["linux-base-", "linux-binary-", "linux-modules-"];
    let found: Vec<String> =
        depends.iter().filter(|name| parts.iter().any(|part| name.starts_with(part))).cloned().collect();
    if found.len() == parts.len() { found } else { vec![image.to_owned()] }
}

/// Writes the ELF file within a `vmlinuz`.
fn extract(tools: &Tools, image: &Path, elf: &Path) -> Result<(), Trouble> {
    let bytes = std::fs::read(image).map_err(|error| Trouble::file(image, error))?;
    let payload = Payload::of(&bytes).map_err(|why| Trouble::file(image, why))?;
    let [packed, unfinished] = ["packed", "unfinished"].map(|end| elf.with_extension(end));
    let write =
        |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).map_err(|error| Trouble::file(path, error));
    if payload.tool.is_empty() {
        write(&unfinished, payload.bytes)?;
    } else {
        write(&packed, payload.bytes)?;
        let input = File::open(&packed).map_err(|error| Trouble::file(&packed, error))?;
        let output = File::create(&unfinished).map_err(|error| Trouble::file(&unfinished, error))?;
        let mut command = tools.command(payload.tool)?;
        // Its status says nothing: behind what is packed stands its size.
        let status = command.arg("-dc").stdin(input).stdout(output).stderr(Stdio::null()).status();
        status.map_err(|error| Trouble::Failed(format!("{}: {error}", payload.tool)))?;
        std::fs::remove_file(&packed).map_err(|error| Trouble::file(&packed, error))?;
    }
    let unpacked = std::fs::read(&unfinished).map_err(|error| Trouble::file(&unfinished, error))?;
    payload.check(&unpacked).map_err(|why| Trouble::file(image, why))?;
    std::fs::rename(&unfinished, elf).map_err(|error| Trouble::file(elf, error))
}

const ELF: &[u8] = b"\x7fELF";

/// What is packed in a `vmlinuz` (`Documentation/arch/x86/boot.rst`).
#[derive(Debug, PartialEq, Eq)]
struct Payload<'a> {
    bytes: &'a [u8],
    /// What unpacks it; empty if it is not packed.
    tool: &'static str,
}

impl<'a> Payload<'a> {
    fn of(image: &'a [u8]) -> Result<Self, String> {
        const TOOLS: [(&[u8], &str); 4] =
            [(ELF, ""), (b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];
        let bytes = Self::find(image).ok_or("no bzImage, or cut short")?;
        let tool = TOOLS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, tool)| *tool);
        let tool = tool.ok_or_else(|| {
            format!(
                "a kernel packed in a way not known here: it begins with {:02x?}",
                &bytes[..bytes.len().min(6)]
            )
        })?;
        Ok(Self { bytes, tool })
    }

    /// The header names the sectors before the protected-mode code, and from there the payload.
    fn find(image: &[u8]) -> Option<&[u8]> {
        let number = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
        if image.get(0x202..0x206)? != b"HdrS" {
            return None;
        }
        let sectors = match image.get(0x1f1)? {
            0 => 4,
            sectors => usize::from(*sectors),
        };
        let start = (sectors + 1) * 512 + number(0x248)?;
        image.get(start..start + number(0x24c)?)
    }

    /// Whether this is what was packed: an ELF file, as long as the payload's last number says.
    fn check(&self, unpacked: &[u8]) -> Result<(), String> {
        if !unpacked.starts_with(ELF) {
            return Err(format!("{} has made no ELF file of it", self.tool));
        }
        let size = self.bytes.last_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize);
        if !self.tool.is_empty() && unpacked.len() != size {
            return Err(format!("{} has made {} bytes of it, not {size}", self.tool, unpacked.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.resize(1024 + 16, 7);
        image.extend(payload);
        image.extend(b"something behind");
        image
    }

    #[test]
    fn payloads_are_found_by_the_header() {
        for (payload, tool) in [
            (&b"\x7fELF..."[..], ""),
            (b"\x1f\x8b...", "gzip"),
            (b"\xfd7zXZ\0...", "xz"),
            (b"\x28\xb5\x2f\xfd...", "zstd"),
        ] {
            assert_eq!(Payload::of(&image(payload)), Ok(Payload { bytes: payload, tool }));
        }
    }

    #[test]
    fn no_image_is_no_panic() {
        let good = image(b"\x1f\x8b...");
        for end in 0..good.len() - b"something behind".len() {
            assert!(Payload::of(&good[..end]).is_err(), "{end}");
        }
        assert!(Payload::of(&image(b"BZh9")).unwrap_err().contains("42, 5a"));
        let mut far = good;
        far[0x24c..0x250].fill(0xff);
        assert!(Payload::of(&far).is_err());
    }

    #[test]
    fn what_is_unpacked_is_checked() {
        let payload = Payload { bytes: b"....\x08\0\0\0", tool: "xz" };
        assert_eq!(payload.check(b"\x7fELF1234"), Ok(()));
        assert!(payload.check(b"\x7fELF123").is_err());
        assert!(payload.check(b"").is_err());
    }

    #[test]
    fn names_of_packages() {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            release(&own(&["linux-base", "linux-image-6.1.0-57-amd64"])).as_deref(),
            Some("6.1.0-57-amd64")
        );
        assert_eq!(release(&own(&["linux-base"])), None);
        let new =
            own(&["kmod", "linux-base-7.3.4-amd64", "linux-binary-7.3.4-amd64", "linux-modules-7.3.4-amd64"]);
        assert_eq!(split("linux-image-7.3.4-amd64", &new), &new[1..]);
        assert_eq!(split("linux-image-6.1.0-57-amd64", &own(&["kmod"])), ["linux-image-6.1.0-57-amd64"]);
    }
}
