//! One guest, or two that have a cable between them: their files, their runs, and what came of these.

use std::fs::{DirBuilder, remove_dir_all};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::boot::{self, Cable, Machine};
use super::guest::{self, Role};
use super::kernel::Kernel;
use super::rows::Built;
use super::tools::Tools;
use super::{Options, Trouble, initramfs, modules};
use crate::results::{self, Results};

/// What all guests have in common.
#[derive(Debug)]
pub(crate) struct Guests<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) kernel: &'a Kernel,
    pub(crate) tests: &'a [Built],
    pub(crate) options: &'a Options,
    /// For their files and logs.
    pub(crate) dir: &'a Path,
}

impl Guests<'_> {
    /// Runs the tests in one guest; or a shell.
    pub(crate) fn run_one(&self) -> Result<Results, Trouble> {
        let role = Role::Alone { namespaces: self.options.kernel.has_namespaces() };
        let image = self.image("", role)?;
        let machine = self.machine(&image, None);
        if !self.options.shell {
            return self.run(&machine, "");
        }
        match boot::interactive(&machine)? {
            true => Ok(Results::default()),
            false => Ok(Results::fail("the shell has not come to its end")),
        }
    }

    /// Runs the tests in two guests at once.
    pub(crate) fn run_two(&self) -> Result<Results, Trouble> {
        // A socket's path may not be long.
        let temporary = std::env::temp_dir().join(format!("rucx-rxe-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&temporary);
        made.map_err(|error| Trouble::file(&temporary, error))?;
        let results = self.run_two_by(&temporary.join("cable"));
        let _ = remove_dir_all(&temporary);
        results
    }

    fn run_two_by(&self, socket: &Path) -> Result<Results, Trouble> {
        let [a, b] = guest::TWO;
        let images = [self.image("-a", a)?, self.image("-b", b)?];
        let machine = |at: usize| {
            let cable = Cable { socket: socket.to_owned(), makes_it: at == 0 };
            self.machine(&images[at], Some(cable))
        };
        let (a, b) = std::thread::scope(|scope| {
            let b = scope.spawn(|| self.run(&machine(1), "-b"));
            (self.run(&machine(0), "-a"), b.join())
        });
        let mut results = a?;
        results.add(b.map_err(|_| Trouble::Failed("a thread has panicked".to_owned()))??);
        Ok(results)
    }

    /// Writes the files of one guest.
    fn image(&self, suffix: &str, role: Role) -> Result<PathBuf, Trouble> {
        let image = self.dir.join(format!("initramfs{suffix}"));
        let init = guest::init(self.options, role, self.tests);
        let binaries = self.tests.iter().map(|test| ("tests", test.binary.as_path()));
        let programs = self.tests.iter().flat_map(|test| &test.programs);
        let binaries = binaries.chain(programs.map(|program| ("bin", program.as_path())));
        let more: &[&str] = if matches!(role, Role::OneOfTwo(..)) { &modules::CABLE } else { &[] };
        let size = initramfs::write(&image, self.tools, self.kernel, binaries, &init, more)?;
        println!("rxe: initramfs of {} MB", size / 1_000_000);
        Ok(image)
    }

    fn machine<'a>(&'a self, image: &'a Path, cable: Option<Cable>) -> Machine<'a> {
        Machine { tools: self.tools, kernel: &self.kernel.elf, initramfs: image, cable }
    }

    /// Runs one guest's tests.
    fn run(&self, machine: &Machine<'_>, suffix: &str) -> Result<Results, Trouble> {
        let secs = self.tests.iter().map(|test| test.row.secs).sum();
        let log = self.dir.join(format!("guest{suffix}.log"));
        let ended = boot::run(machine, secs, &log)?;
        let verdict =
            boot::verdict(ended.code, &ended.output, self.tests.len(), self.options.filter.is_none());
        let mut results = results::of_cargo_test(&ended.output, verdict.is_ok());
        if verdict.is_err() || results.failed > 0 {
            boot::print_tail(&ended.output);
            println!("rxe: all of it: {}", log.display());
        }
        if let Err(why) = &verdict {
            let qemu = if ended.how.is_empty() { String::new() } else { format!("; qemu: {}", ended.how) };
            println!("rxe: {why}{qemu}");
            if results.failed == 0 {
                results.add_failure(why.clone());
            }
        }
        Ok(results)
    }
}
