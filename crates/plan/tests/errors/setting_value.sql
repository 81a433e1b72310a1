SET 'millstream.exchange' = 'merg';
