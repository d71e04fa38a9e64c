//! How large a cache may grow, and how it checks.

/// How a hit is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As `Hooks` as long as hooks of memory calls have announced all changes, else, and without the feature `hooks`, as `Strict`.
    Auto,
    /// Each hit is checked by the kernel.
    Strict,
    /// Hits are not checked: changes are announced before and after, by hooks.
    Hooks,
    /// Nothing is cached: every registration is for one use.
    Off,
}

/// Options of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How a hit is checked.
    pub mode: Mode,
    /// Most registrations. What is watched for them costs mappings of the process: half of `vm.max_map_count` at most.
    pub max_regions: u32,
    /// Most bytes that registrations nobody uses may keep.
    pub max_bytes: u64,
    /// Registrations begin and end at multiples of this many bytes, a power of two; at least a page.
    pub alignment: usize,
    /// Whether registrations of memory of files and of shared memory are kept: memfds, mapped files (the initialised data of programs
    /// and libraries are such), private mappings of them, too, anonymous memory shared with a fork's child. Nobody tells when somebody makes the file shorter or
    /// punches a hole: so only if nobody does.
    pub files: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::Strict, max_regions: 16_384, max_bytes: 16 << 30, alignment: 4096, files: false }
    }
}
