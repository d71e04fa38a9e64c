//! Declarations of variables.

use std::any::{Any, TypeId};
use std::fmt;
use std::marker::PhantomData;

use super::{Value, ValueError};

/// Declaration of a variable whose value is a `T`.
///
/// A constant of the crate that uses it. Two declarations with one name are one variable, and must agree.
pub struct Var<T> {
    name: &'static str,
    default: &'static str,
    doc: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T: Value> Var<T> {
    /// Declares the variable `name`, with its `default` written as a user would, and what it is for.
    ///
    /// # Panics
    /// In the compiler, where it initialises a constant, if `name` does not begin with `UCX_`. A `default` that is not
    /// accepted is an error of [`ConfigBuilder::build`](super::ConfigBuilder::build).
    #[must_use]
    pub const fn new(name: &'static str, default: &'static str, doc: &'static str) -> Self {
        assert!(
            matches!(name.as_bytes(), [b'U', b'C', b'X', b'_', _, ..]),
            "the name of a variable begins with UCX_"
        );
        Self { name, default, doc, value: PhantomData }
    }

    /// `UCX_…`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What it is for.
    #[must_use]
    pub const fn doc(&self) -> &'static str {
        self.doc
    }
}

// Not derived: a derive would ask for `T: Clone` and so on.
impl<T> Clone for Var<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Var<T> {}

impl<T> fmt::Debug for Var<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Var")
            .field("name", &self.name)
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}

/// A [`Var`] of any type, for lists of them. Implemented by `Var` alone.
pub trait AnyVar: fmt::Debug + Send + Sync + sealed::Parse {
    /// `UCX_…`.
    fn name(&self) -> &'static str;
    /// What it is for.
    fn doc(&self) -> &'static str;
    /// Its default, as declared.
    fn default(&self) -> &'static str;
    /// What it may be set to.
    fn accepts(&self) -> String;
}

pub(super) mod sealed {
    use super::{Any, TypeId, ValueError};

    /// A value and its canonical text.
    pub(crate) type Parsed = (Box<dyn Any + Send + Sync>, String);

    pub trait Parse {
        fn type_id(&self) -> TypeId;
        fn parse(&self, text: &str) -> Result<Parsed, ValueError>;
    }
}

impl<T: Value> AnyVar for Var<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> &'static str {
        self.doc
    }

    fn default(&self) -> &'static str {
        self.default
    }

    fn accepts(&self) -> String {
        T::accepts().into_owned()
    }
}

impl<T: Value> sealed::Parse for Var<T> {
    fn type_id(&self) -> TypeId {
        TypeId::of::<T>()
    }

    fn parse(&self, text: &str) -> Result<sealed::Parsed, ValueError> {
        let value = T::parse(text)?;
        let text = value.print();
        Ok((Box::new(value), text))
    }
}
