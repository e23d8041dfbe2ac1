mod generate;
mod golden;
mod round_trip;
