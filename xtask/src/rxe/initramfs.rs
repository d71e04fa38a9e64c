//! The guest's files: its first program, kernel modules, the tests, and the programs and libraries they need.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::process::{Command, Stdio};

use super::cpio::Archive;
use super::kernel::Kernel;
use super::tools::{PROVIDER, RDMACM, Tools};
use super::{Trouble, modules};

/// Where the dynamic linker looks by itself.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Writes the archive; its size.
pub(crate) fn write<'a>(
    path: &Path,
    tools: &Tools,
    kernel: &Kernel,
    binaries: impl Iterator<Item = (&'static str, &'a Path)>,
    init: &str,
    more_modules: &[&str],
) -> Result<u64, Trouble> {
    let file = File::create(path).map_err(|error| Trouble::file(path, error))?;
    let mut image = Image { archive: Archive::new(BufWriter::new(file)), path, tools };
    image.base(init)?;
    image.modules(kernel, more_modules)?;
    image.put("bin/busybox", &tools.path("busybox")?)?;
    for program in ["ip", "rdma", "tc"] {
        image.program(&format!("bin/{program}"), &tools.path(program)?)?;
    }
    image.verbs()?;
    for (to, binary) in binaries {
        image.binary(to, binary)?;
    }
    let written =
        image.archive.finish().and_then(|file| file.into_inner().map_err(|error| error.into_error()));
    let size = written.and_then(|file| file.metadata()).map_err(|error| Trouble::file(path, error))?.len();
    Ok(size)
}

struct Image<'a> {
    archive: Archive<BufWriter<File>>,
    /// Of the archive, for what is said of errors.
    path: &'a Path,
    tools: &'a Tools,
}

impl Image<'_> {
    fn written(&self, result: io::Result<()>) -> Result<(), Trouble> {
        result.map_err(|error| Trouble::file(self.path, error))
    }

    fn add(&mut self, to: &str, content: &[u8]) -> Result<(), Trouble> {
        let result = self.archive.file(to, content);
        self.written(result)
    }

    fn put(&mut self, to: &str, from: &Path) -> Result<(), Trouble> {
        let content = std::fs::read(from).map_err(|error| Trouble::file(from, error))?;
        self.add(to, &content)
    }

    /// A program or library, and what it is linked with.
    fn program(&mut self, to: &str, from: &Path) -> Result<(), Trouble> {
        self.put(to, from)?;
        for library in self.tools.linked(from)? {
            let to = match library.starts_with("/lib64") {
                true => library.to_string_lossy().trim_start_matches('/').to_owned(),
                false => format!("{LIBRARIES}/{}", name(&library)),
            };
            self.put(&to, &library)?;
        }
        Ok(())
    }

    /// A test or program, without what only a debugger reads, where there is a `strip` that takes it out: the guest has little memory.
    fn binary(&mut self, to: &str, from: &Path) -> Result<(), Trouble> {
        let to = format!("{to}/{}", name(from));
        let stripped = self.path.with_extension("stripped");
        let mut strip = Command::new("strip");
        strip.arg("--strip-debug").arg("-o").args([&stripped, from]).stderr(Stdio::null());
        if strip.status().is_ok_and(|status| status.success()) {
            self.put(&to, &stripped)?;
            std::fs::remove_file(&stripped).map_err(|error| Trouble::file(&stripped, error))?;
        }
        self.program(&to, from)
    }

    fn base(&mut self, init: &str) -> Result<(), Trouble> {
        for dir in ["proc", "sys", "dev", "tmp", "bin", "tests"] {
            let result = self.archive.dir(dir);
            self.written(result)?;
        }
        // The first program's output, before it has a /dev.
        let result = self.archive.device("dev/console", (5, 1));
        self.written(result)?;
        self.add("etc/passwd", b"root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n")?;
        self.add("etc/group", b"root:x:0:\nnogroup:x:65534:\n")?;
        self.add("init", init.as_bytes())
    }

    /// The modules, unpacked here, as the guest is slow; and a file with their order.
    fn modules(&mut self, kernel: &Kernel, more: &[&str]) -> Result<(), Trouble> {
        let read = |name: &str| {
            let path = kernel.modules.join(name);
            std::fs::read_to_string(&path).map_err(|error| Trouble::file(&path, error))
        };
        let builtin = read("modules.builtin").unwrap_or_default();
        let paths = modules::order(&read("modules.dep")?, &builtin, more).map_err(|name| {
            Trouble::file(&kernel.modules, format!("Linux {} has no {name}", kernel.release))
        })?;
        let mut order = String::new();
        for path in paths {
            let path = kernel.modules.join(path);
            let tool = match path.extension().and_then(|extension| extension.to_str()) {
                Some("xz") => Some("xz"),
                Some("zst") => Some("zstd"),
                _ => None,
            };
            let name = name(if tool.is_some() { path.with_extension("") } else { path.clone() }.as_path());
            match tool {
                Some(tool) => {
                    let output = self.tools.command(tool)?.arg("-dc").arg(&path).output();
                    let output = output.map_err(|error| Trouble::file(&path, error))?;
                    if !output.status.success() {
                        return Err(Trouble::file(&path, String::from_utf8_lossy(&output.stderr).trim()));
                    }
                    self.add(&format!("modules/{name}"), &output.stdout)?;
                }
                None => self.put(&format!("modules/{name}"), &path)?,
            }
            order += &format!("{name}\n");
        }
        self.add("modules/order", order.as_bytes())
    }

    /// libibverbs and librdmacm, which tests may load by their names, and the user's half of rxe, which it loads by a file in /etc.
    fn verbs(&mut self) -> Result<(), Trouble> {
        let verbs = self.tools.path("libibverbs.so.1")?;
        self.program(&format!("{LIBRARIES}/libibverbs.so.1"), &verbs)?;
        self.program(&format!("{LIBRARIES}/{RDMACM}"), &self.tools.path(RDMACM)?)?;
        let provider = self.tools.path(PROVIDER)?;
        self.program(&format!("{LIBRARIES}/libibverbs/{}", name(&provider)), &provider)?;
        self.add("etc/libibverbs.d/rxe.driver", b"driver rxe\n")
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
