//! Values of settings: Topic Filters, one a line, and names, separated by commas.

use std::collections::BTreeSet;

use definitions::check_name;
use settings::{Invalid, Raw, Value};

use crate::cut::check_filter;

/// Maximum number of filters in a setting.
const FILTERS_MAX: usize = 1000;
/// Maximum number of names in a setting.
const NAMES_MAX: usize = 64;

/// Topic Filters, one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters(Box<[Box<str>]>);

impl Filters {
    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|filter| &**filter)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut filters = Vec::new();
        let mut seen = BTreeSet::new();
        for line in lines {
            check_filter(line)?;
            if seen.insert(line) {
                filters.push(line.into());
            }
        }
        if filters.len() > FILTERS_MAX {
            return Err(format!(
                "{} filters, and the maximum is {FILTERS_MAX}; use wildcards",
                filters.len()
            ));
        }
        Ok(Self(filters.into()))
    }
}

impl Value for Filters {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        Self::parse(&text).map_err(|why| Invalid::Form {
            expected: "Topic Filters, one a line",
            found: raw.to_string(),
            why,
        })
    }

    fn to_toml(&self) -> Option<String> {
        self.iter().collect::<Vec<_>>().join("\n").to_toml()
    }
}

/// Names of clusters, separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(Box<[Box<str>]>);

impl Names {
    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|name| &**name)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut names: Vec<Box<str>> = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            check_name(name).map_err(|problem| problem.why)?;
            if !names.iter().any(|known| **known == *name) {
                names.push(name.into());
            }
        }
        if names.len() > NAMES_MAX {
            return Err(format!("{} names, and the maximum is {NAMES_MAX}", names.len()));
        }
        Ok(Self(names.into()))
    }
}

impl Value for Names {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        Self::parse(&text).map_err(|why| Invalid::Form {
            expected: "names of clusters, separated by commas",
            found: raw.to_string(),
            why,
        })
    }

    fn to_toml(&self) -> Option<String> {
        self.iter().collect::<Vec<_>>().join(",").to_toml()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_lines() {
        let filters = Filters::parse("a/#\n\n  b/+\na/#\n#\n").expect("valid");
        assert_eq!(filters.iter().collect::<Vec<_>>(), ["a/#", "b/+", "#"]);
        assert_eq!(filters.to_toml(), "a/#\nb/+\n#".to_owned().to_toml());
        assert!(Filters::parse("").expect("valid").is_empty());
        for (text, why) in [("a/#/b", "a/#/b"), ("a\n$SYS/#", "begins with `$`")] {
            assert!(Filters::parse(text).expect_err(text).contains(why));
        }
        let many: Vec<String> = (0..1001).map(|at| at.to_string()).collect();
        assert!(Filters::parse(&many.join("\n")).expect_err("too many").contains("1001 filters"));
    }

    #[test]
    fn names_are_separated_by_commas() {
        let names = Names::parse(" east, west,,east").expect("valid");
        assert_eq!(names.iter().collect::<Vec<_>>(), ["east", "west"]);
        assert!(Names::parse("a/b").expect_err("a/b").contains("is not a name"));
    }
}
