//! What a reload changes, in short.
use crate::plan::Plan;
/// x
pub struct Changes {}
/// x
pub fn diff(_o: &Plan, _n: &Plan) -> Changes {
    Changes {}
}
