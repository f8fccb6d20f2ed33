/// Rows of cells under a heading, each column as wide as its widest cell; numbers (cells that begin with a digit) to the
/// right.
#[must_use]
pub fn table<R: AsRef<[String]>>(heading: &[&str], rows: &[R]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column)).map(|cell| cell.chars().count());
        cells.chain(heading.get(column).map(|h| h.len())).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, &width)| {
            if cell.starts_with(|c: char| c.is_ascii_digit()) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:width$}")
            }
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let body = rows.iter().map(|row| line(&mut row.as_ref().iter().map(String::as_str)));
    std::iter::once(line(&mut heading.iter().copied())).chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn tables_line_up() {
        let rows = [["a".to_owned(), "10".to_owned()], ["long".to_owned(), "9".to_owned()]];
        assert_eq!(table(&["what", "n"], &rows), "what  n\na     10\nlong   9\n");
    }
}
