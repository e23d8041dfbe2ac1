//! Limits of rules, evaluations and templates.

/// Limits with a default each. A rule, an evaluation or a rendering that reaches one ends with an error that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the text of a rule or of a template, in bytes.
    pub text_bytes: usize,
    /// Maximum nesting of the expressions of a rule. Each operator, call and pair of parentheses is one level.
    /// [`NESTING_MAX`] is the greatest value that has an effect.
    pub nesting: usize,
    /// Maximum number of columns of a rule, and of sources.
    pub columns: usize,
    /// Maximum nesting of arrays and objects in JSON. [`JSON_DEPTH_MAX`] is the greatest value that has an effect.
    pub json_depth: usize,
    /// Maximum number of steps of one evaluation. A step is one node of an expression or one element of a value.
    pub steps: u64,
    /// Maximum number of bytes that one evaluation produces: texts, and 24 bytes for each element.
    pub bytes: u64,
    /// Maximum number of outputs of one FOREACH.
    pub outputs: usize,
    /// Maximum size of a compiled regular expression, in bytes.
    pub regex_bytes: usize,
    /// Maximum number of constant regular expressions of a rule, which are compiled when the rule is parsed.
    pub regexes: usize,
    /// Maximum size of a rendered template, in bytes.
    pub rendered_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            text_bytes: 64 * 1024,
            nesting: 64,
            columns: 1_000,
            json_depth: 32,
            steps: 100_000,
            bytes: 4 * 1024 * 1024,
            outputs: 1_000,
            regex_bytes: 256 * 1024,
            regexes: 64,
            rendered_bytes: 1024 * 1024,
        }
    }
}

/// Greatest effective [`Limits::nesting`]. It keeps the recursion of the parser and the evaluator small.
pub const NESTING_MAX: usize = 128;

/// Greatest effective [`Limits::json_depth`].
pub const JSON_DEPTH_MAX: usize = 96;

/// Maximum nesting of any value. It keeps the recursion of comparing, encoding and dropping small.
pub const VALUE_DEPTH_MAX: usize = 128;

const _: () = assert!(JSON_DEPTH_MAX < VALUE_DEPTH_MAX);
